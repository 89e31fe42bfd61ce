"""A training whose batches grow."""

from __future__ import annotations

from megatron_runs import tiny_gpt


def growing(*flags, **settings):
    """Batches of 1, 2, 3 and then 4 microbatches; thresholds are tokens, 32 a sample."""
    arguments = tiny_gpt(*flags, **settings)
    for name in ("--train-iters", "--lr-decay-iters", "--global-batch-size"):
        index = arguments.index(name)
        del arguments[index : index + 2]
    return [
        *arguments,
        *("--train-samples", "20", "--lr-decay-samples", "1000"),
        *("--step-batch-size-schedule", "0:1 64:2 192:3 384:4"),
    ]

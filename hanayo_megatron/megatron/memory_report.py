"""Megatron's theoretical memory, where one rank holds the first and the last stage."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

from hanayo_megatron.megatron.hooks import Hook
from hanayo_megatron.megatron.pipeline import Pipeline


def memory_hooks(pipeline: Pipeline) -> list[Hook]:
    """Megatron counts one embedding on its most loaded rank; under waves that rank has the head."""
    rank_of = pipeline.placement.rank_of
    if rank_of[0] != rank_of[-1]:
        return []
    return [
        Hook(
            "megatron.training.theoretical_memory_usage:compute_weight_and_optimizer_memory",
            ("args", "verbose"),
            _counting_both_ends,
        )
    ]


def _counting_both_ends(original: Callable) -> Callable:
    def compute_weight_and_optimizer_memory(
        args: argparse.Namespace, verbose: bool = False
    ) -> float:
        """Bytes of weights, gradients and optimizer state on the most loaded rank."""
        original(args, verbose)  # prints its details
        both_ends = copy.copy(args)
        both_ends.padded_vocab_size = 2 * args.padded_vocab_size
        return original(both_ends)

    return compute_weight_and_optimizer_memory

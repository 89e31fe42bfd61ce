"""The arguments of a GPT so small that a step takes milliseconds."""

from __future__ import annotations

from pathlib import Path


def tiny_gpt(
    *more: str,
    layers: int = 8,
    microbatches: int = 4,
    iterations: int = 10,
    corpus: Path | None = None,
) -> list[str]:
    """Megatron's arguments: hidden size 64, 32 tokens, microbatch size 1, no dropout.

    Args:
        more: further arguments; they win over those given here.
        microbatches: of all data-parallel ranks together.
        corpus: prefix of indexed data; mock data if None.
    """
    data = ["--mock-data"] if corpus is None else ["--data-path", str(corpus)]
    return [
        *("--num-layers", str(layers), "--hidden-size", "64", "--num-attention-heads", "4"),
        *("--seq-length", "32", "--max-position-embeddings", "32"),
        *("--micro-batch-size", "1", "--global-batch-size", str(microbatches)),
        *("--train-iters", str(iterations), "--lr", "1e-3"),
        *("--lr-decay-style", "constant", "--lr-decay-iters", "1000"),
        *("--attention-dropout", "0", "--hidden-dropout", "0"),
        *data,
        *("--tokenizer-type", "NullTokenizer", "--vocab-size", "256"),
        *("--num-workers", "0", "--split", "90,5,5"),
        *("--log-interval", "1", "--eval-interval", "1000", "--eval-iters", "0"),
        *more,
    ]

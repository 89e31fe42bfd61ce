"""Ranks that move losses step after step; the messages that each step took are counted."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist

from hanayo_megatron.megatron.losses import Outlines, move_to_rank


class Counted(NamedTuple):
    tokens: torch.Tensor
    unit: str
    limit: int


def losses_of(step: int) -> list:
    """What a last stage may have collected; the structure changes in step 2."""
    entry = {
        "lm loss": torch.tensor([1.5 * step, 32.0]),
        "count": Counted(torch.tensor(step), "text", 7),
    }
    return [entry, {"lm loss": torch.tensor([[0.25 * step]], dtype=torch.bfloat16)}][
        : 1 + step // 2
    ]


def move_losses(rank: int, source: int, target: int) -> list:
    """(what the rank got, messages it sent or received) of five steps."""
    torch.cuda.current_device = lambda: "cpu"
    messages = []
    for name in ("send", "recv"):
        original = getattr(dist, name)

        def counted(tensor, *args, original=original, **kwargs):
            messages.append(tensor.numel())
            return original(tensor, *args, **kwargs)

        setattr(dist, name, counted)
    outlines = Outlines()
    steps = []
    for step in (1, 1, 2, 1, 2):
        messages.clear()
        values = losses_of(step) if rank == source else []
        got = move_to_rank(
            values, source=source, target=target, group=dist.group.WORLD, outlines=outlines
        )
        steps.append((got, list(messages)))
    return steps


def move_from_two(rank: int) -> tuple[list, int]:
    """What rank 2 got of ranks 0 and 1 in 20 steps, and how many structures are remembered.

    Both send the same structure; a number in it that is no tensor changes from step to step.
    """
    torch.cuda.current_device = lambda: "cpu"
    outlines = Outlines()
    steps = []
    for step in range(20):
        got = []
        for source in (0, 1):
            values = [{"loss": torch.tensor(10 * step + rank), "step": step}]
            moved = move_to_rank(
                values if rank == source else [],
                source=source,
                target=2,
                group=dist.group.WORLD,
                outlines=outlines,
            )
            got += [(entry["loss"].item(), entry["step"]) for entry in moved]
        steps.append(got)
    return steps, len(outlines)

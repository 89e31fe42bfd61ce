"""One piece of work of a pipeline: a kind, a stage and a microbatch."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

_CELL = re.compile(r"(\d+)([FBIW])(\d+)")


class Kind(StrEnum):
    """What an action computes; the letters of torch.distributed.pipelining."""

    F = "F"
    """Forward."""
    B = "B"
    """Full backward: gradients of the input and of the weights."""
    I = "I"  # noqa: E741  # the field's letter
    """Backward for the input only."""
    W = "W"
    """Backward for the weights only."""


F, B, I, W = Kind  # noqa: E741


class Action(NamedTuple):
    """Work of one stage on one microbatch; ``3F0`` is stage 3, forward, microbatch 0."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, cell: str) -> Action:
        """Read a cell such as ``3F0``. Raises ValueError on anything else."""
        match = _CELL.fullmatch(cell.strip())
        if match is None:
            raise ValueError(
                f"cell {cell!r} is not an action; expected <stage><kind><microbatch> with kind one "
                "of F (forward), B (backward), I (input gradient), W (weight gradient), as in 3F0"
            )
        return cls(int(match[1]), Kind(match[2]), int(match[3]))

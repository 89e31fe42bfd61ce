"""A pipeline schedule: for every rank, the order of its compute actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from hanayo_megatron.errors import HanayoError
from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.placement import Placement


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """What a schedule is asked for.

    Args:
        pp: P, ranks of the pipeline.
        microbatches: M, microbatches of one step.
        waves: W, for schedules on wave placements.
        chunks: V, stages a rank, for schedules on looped placements.
        costs: times that cost-aware schedules plan with.
        memory_limit: most activations a rank may hold, in M_a; None: the schedule's own bound.
    """

    pp: int
    microbatches: int
    waves: int = 1
    chunks: int = 2
    costs: Costs = field(default_factory=Costs)
    memory_limit: float | None = None

    def __post_init__(self) -> None:
        for name in ("pp", "microbatches", "waves", "chunks"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ScheduleError(f"{name} must be a whole number of at least 1, got {value!r}")


@dataclass(frozen=True)
class Schedule:
    """Who computes what, in which order. A schedule owns its placement.

    Args:
        name: as registered, or the file it came from.
        placement: rank of every stage id.
        num_microbatches: M.
        orders: compute actions of each rank, in order of execution.
    """

    name: str
    placement: Placement
    num_microbatches: int
    orders: tuple[tuple[Action, ...], ...]

    @cached_property
    def splits_backward(self) -> bool:
        """Whether any backward is split into input and weight parts."""
        return any(a.kind in (Kind.I, Kind.W) for order in self.orders for a in order)

    @cached_property
    def is_forward_only(self) -> bool:
        return all(a.kind is Kind.F for order in self.orders for a in order)

    @cached_property
    def microbatches_of_replica(self) -> tuple[tuple[int, ...], ...]:
        """Microbatches that each replica's first stage reads, ascending."""
        first = [r * self.placement.model_stages for r in range(self.placement.replicas)]
        return tuple(
            tuple(
                sorted(
                    a.microbatch
                    for a in self.orders[self.placement.rank_of[stage]]
                    if a.stage == stage and a.kind is Kind.F
                )
            )
            for stage in first
        )


class ScheduleError(HanayoError, ValueError):
    """A schedule that cannot be built, or that is wrong."""

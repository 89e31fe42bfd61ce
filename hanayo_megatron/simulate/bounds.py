"""What no order of a schedule's actions can beat on its placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.costs import Costs, Ticks
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class MakespanBound:
    """Lower bounds on the makespan; the larger one holds.

    Args:
        busiest_rank: a rank's work, with the shortest way of any microbatch to its first action
            before, and from its last action to the end of the step behind.
        one_microbatch: the way of one microbatch through all stages and back.
    """

    busiest_rank: float
    one_microbatch: float

    @property
    def makespan(self) -> float:
        return max(self.busiest_rank, self.one_microbatch)


def makespan_bound(schedule: Schedule, costs: Costs) -> MakespanBound:
    """Bounds for any orders of the same actions, with any memory and links that never queue."""
    placement = schedule.placement
    ticks = costs.ticks(placement)
    forward, backward = ticks.durations[Kind.F], ticks.durations[Kind.B]
    if schedule.splits_backward:
        backward = list(map(min, backward, ticks.durations[Kind.I]))
    fill = _way_from_first(placement, ticks, forward, forwards=True)
    drain = _way_from_first(placement, ticks, backward, forwards=False)
    if schedule.is_forward_only:
        backward = drain = [0] * placement.num_stages

    ranks = [0]
    for order in schedule.orders:
        work = sum(ticks.durations[kind][stage] for stage, kind, _ in order)
        before = min((fill[stage] for stage, kind, _ in order if kind is Kind.F), default=0)
        ends_with_any = schedule.is_forward_only or any(kind is Kind.W for _, kind, _ in order)
        after = 0 if ends_with_any else min((drain[stage] for stage, _, _ in order), default=0)
        ranks.append(before + work + after)
    last_stages = [s for s in range(placement.num_stages) if placement.is_last(s)]
    around = [fill[s] + forward[s] + backward[s] + drain[s] for s in last_stages]
    return MakespanBound(
        busiest_rank=ticks.time(max(ranks)), one_microbatch=ticks.time(max(around))
    )


def _way_from_first(
    placement: Placement, ticks: Ticks, durations: Sequence[int], *, forwards: bool
) -> list[int]:
    """Time of the stages before each one and of the links to it, or back from it."""
    way = [0] * placement.num_stages
    for stage in range(1, placement.num_stages):
        if placement.is_first(stage):
            continue
        here, before = placement.rank_of[stage], placement.rank_of[stage - 1]
        link = ticks.links[(before, here) if forwards else (here, before)]
        way[stage] = way[stage - 1] + durations[stage - 1] + link
    return way

"""When every action would run if nothing but dependencies and busy ranks held it up."""

from __future__ import annotations

from dataclasses import dataclass

from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.schedule import Schedule, ScheduleError


@dataclass(frozen=True)
class Plan:
    """Planned start and end of every action, in ticks, beside the schedule's orders."""

    starts: tuple[list[int], ...]
    ends: tuple[list[int], ...]


def plan_times(schedule: Schedule, costs: Costs, *, least_transfer: int = 0) -> Plan:
    """Start every action as early as its rank's order and its inputs allow.

    A transfer takes ``least_transfer`` ticks, or longer where the costs say so.
    Raises ScheduleError naming every blocked rank when the orders wait for each other.
    """
    placement = schedule.placement
    rank_of, model_stages = placement.rank_of, placement.model_stages
    num_microbatches = schedule.num_microbatches
    ticks = costs.ticks(placement)
    # At least one tick, also for what costs nothing: starts must increase on a rank.
    duration_of = {kind: [max(t, 1) for t in ticks.durations[kind]] for kind in Kind}
    links = {(a, b): max(t, least_transfer * (a != b)) for (a, b), t in ticks.links.items()}
    # Time at which the forward / backward output of (stage, microbatch) is there, by flat index.
    size = placement.num_stages * num_microbatches
    ready: dict[Kind, list[int | None]] = {Kind.F: [None] * size, Kind.B: [None] * size}
    waiting: dict[tuple[Kind, int], list[int]] = {}

    starts: tuple[list[int], ...] = tuple([] for _ in schedule.orders)
    ends: tuple[list[int], ...] = tuple([] for _ in schedule.orders)
    clock = [0] * placement.num_ranks
    runnable = list(range(placement.num_ranks))
    while runnable:
        rank = runnable.pop()
        order, rank_starts, rank_ends = schedule.orders[rank], starts[rank], ends[rank]
        now = clock[rank]
        for position in range(len(rank_starts), len(order)):
            stage, kind, microbatch = order[position]
            position_in_model = stage % model_stages
            if kind is Kind.F:
                source = stage - 1 if position_in_model else None
                needs = Kind.F
            elif kind is Kind.W:
                source = None
            else:
                source = stage + 1 if position_in_model < model_stages - 1 else None
                needs = Kind.B
            start = now
            if source is not None:
                index = source * num_microbatches + microbatch
                arrival = ready[needs][index]
                if arrival is None:
                    waiting.setdefault((needs, index), []).append(rank)
                    break
                arrival += links[rank_of[source], rank]
                if arrival > start:
                    start = arrival
            now = start + duration_of[kind][stage]
            rank_starts.append(start)
            rank_ends.append(now)
            if kind is not Kind.W:
                made = Kind.F if kind is Kind.F else Kind.B
                index = stage * num_microbatches + microbatch
                ready[made][index] = now
                if waiting:
                    runnable += waiting.pop((made, index), ())
        clock[rank] = now

    stuck = [
        f"rank {rank} waits at position {len(starts[rank])} with {order[len(starts[rank])]}"
        for rank, order in enumerate(schedule.orders)
        if len(starts[rank]) < len(order)
    ]
    if stuck:
        raise ScheduleError(
            f"schedule {schedule.name!r} cannot run, its orders wait for each other: "
            + "; ".join(stuck)
        )
    return Plan(starts, ends)

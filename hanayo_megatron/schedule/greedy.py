"""Schedules found by running the pipeline once, each rank taking the best ready action."""

from __future__ import annotations

from heapq import heappop, heappush

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.placement import Placement


def greedy_orders(
    placement: Placement,
    *,
    num_microbatches: int,
    costs: Costs,
    max_in_flight: int,
) -> tuple[tuple[Action, ...], ...]:
    """Backward first (lowest microbatch, deepest stage), else forward of the deepest stage.

    At most ``max_in_flight`` microbatches are between their first forward and their last backward,
    which bounds the activations of a rank by ``max_in_flight`` times its share.
    """
    ticks = costs.ticks(placement)
    forward_time, backward_time = ticks.durations[Kind.F], ticks.durations[Kind.B]
    rank_of, last = placement.rank_of, placement.num_stages - 1

    orders: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    ready_backward: list[list[tuple[int, int]]] = [[] for _ in orders]  # (microbatch, -stage)
    ready_forward: list[list[tuple[int, int]]] = [[] for _ in orders]  # (-stage, microbatch)
    busy = [False] * placement.num_ranks
    events: list[tuple[int, int, int, Kind, int]] = []  # (time, phase, stage, kind, microbatch)
    done, arrive = 0, 1
    admitted = min(max_in_flight, num_microbatches)
    for microbatch in range(admitted):
        heappush(ready_forward[rank_of[0]], (0, microbatch))
    idle = {rank_of[0]}

    now = 0
    while True:
        for rank in idle:
            if busy[rank]:
                continue
            if ready_backward[rank]:
                microbatch, negative = heappop(ready_backward[rank])
                stage, kind, time = -negative, Kind.B, backward_time[-negative]
            elif ready_forward[rank]:
                negative, microbatch = heappop(ready_forward[rank])
                stage, kind, time = -negative, Kind.F, forward_time[-negative]
            else:
                continue
            busy[rank] = True
            orders[rank].append(Action(stage, kind, microbatch))
            heappush(events, (now + time, done, stage, kind, microbatch))
        if not events:
            return tuple(map(tuple, orders))

        idle = set()
        now = events[0][0]
        while events and events[0][0] <= now:
            _, phase, stage, kind, microbatch = heappop(events)
            rank = rank_of[stage]
            idle.add(rank)
            if phase == arrive:
                if kind is Kind.F:
                    heappush(ready_forward[rank], (-stage, microbatch))
                else:
                    heappush(ready_backward[rank], (microbatch, -stage))
                continue
            busy[rank] = False
            if kind is Kind.F:
                target, kind = (stage, Kind.B) if stage == last else (stage + 1, Kind.F)
            elif stage == 0:
                if admitted == num_microbatches:
                    continue
                target, kind, microbatch = 0, Kind.F, admitted
                admitted += 1
            else:
                target = stage - 1
            transfer = ticks.links[rank, rank_of[target]]
            heappush(events, (now + transfer, arrive, target, kind, microbatch))

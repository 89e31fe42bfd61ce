"""Blocks found by running the pipeline once, each rank taking the best ready action."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.block import Block
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.placement import Placement


def greedy_block(
    placement: Placement, *, microbatches: int, costs: Costs, split_backward: bool = False
) -> Block:
    """Backward first (lowest microbatch, then deepest stage), else forward of the deepest stage.

    A split backward computes weight gradients where a rank has nothing else; they shape the times
    but are not in the block. Replicas take microbatches in turn.
    """
    ticks = costs.ticks(placement)
    durations, links = ticks.durations, ticks.links
    rank_of, depth = placement.rank_of, placement.model_stages
    backward = Kind.I if split_backward else Kind.B

    starts: list[list[tuple[int, Action]]] = [[] for _ in range(placement.num_ranks)]
    ready_backward: list[list[tuple[int, int, int]]] = [[] for _ in starts]
    ready_forward: list[list[tuple[int, int, int]]] = [[] for _ in starts]
    unweighted: list[deque[int]] = [deque() for _ in starts]  # stages

    def make_ready(kind: Kind, stage: int, microbatch: int) -> None:
        depth_left = depth - stage % depth
        if kind is Kind.F:
            heappush(ready_forward[rank_of[stage]], (depth_left, microbatch, stage))
        else:
            heappush(ready_backward[rank_of[stage]], (microbatch, depth_left, stage))

    for replica, share in enumerate(placement.split_microbatches(microbatches)):
        for microbatch in share:
            make_ready(Kind.F, replica * depth, microbatch)

    running: list[Action | None] = [None] * len(starts)
    events: list[tuple[int, int, int, Action]] = []  # (time, what, rank, finished or now ready)
    finish, arrive = 0, 1
    now, touched = 0, set(range(len(starts)))
    while True:
        for rank in touched:
            if running[rank] is not None:
                continue
            if ready_backward[rank]:
                microbatch, _, stage = heappop(ready_backward[rank])
                action = Action(stage, backward, microbatch)
            elif ready_forward[rank]:
                _, microbatch, stage = heappop(ready_forward[rank])
                action = Action(stage, Kind.F, microbatch)
            elif unweighted[rank]:
                action = Action(unweighted[rank].popleft(), Kind.W, -1)
            else:
                continue
            running[rank] = action
            if action.kind is not Kind.W:
                starts[rank].append((now, action))
            heappush(events, (now + durations[action.kind][action.stage], finish, rank, action))
        if not events:
            return Block(placement, microbatches, tuple(map(tuple, starts)))

        now, touched = events[0][0], set()
        while events and events[0][0] == now:
            _, what, rank, (stage, kind, microbatch) = heappop(events)
            touched.add(rank)
            if what == arrive:
                make_ready(kind, stage, microbatch)
                continue
            running[rank] = None
            if kind is Kind.F:
                target = (stage, backward) if placement.is_last(stage) else (stage + 1, Kind.F)
            elif kind is Kind.W:
                continue
            else:
                if split_backward:
                    unweighted[rank].append(stage)
                if placement.is_first(stage):
                    continue
                target = (stage - 1, backward)
            peer = rank_of[target[0]]
            arrival = now + links[rank, peer]
            heappush(events, (arrival, arrive, peer, Action(*target, microbatch)))

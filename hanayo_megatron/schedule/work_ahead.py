"""A drafted order is run once; ranks that would wait work ahead within their memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.placement import Placement

Draft = Sequence[Sequence[Action]]
"""Forwards and backwards (joint, or for the input only) of each rank, in the order wished for."""


@dataclass(frozen=True)
class Run:
    """Orders that were found by running the pipeline, and the time that they took, in ticks."""

    orders: tuple[tuple[Action, ...], ...]
    makespan: int


class Ahead(Enum):
    """What a rank may run before its place in the draft, rather than wait."""

    NOTHING = auto()
    BACKWARDS = auto()
    EVERYTHING = auto()


def work_ahead(
    draft: Draft,
    placement: Placement,
    *,
    num_microbatches: int,
    costs: Costs,
    max_live: int,
    ahead: Ahead,
) -> Run | None:
    """Run a draft; a rank whose next action is not ready takes the next one that is.

    A rank that has nothing ready that it may run computes a weight gradient. A forward needs room
    for its activation now and up to its place in the draft, so that the rest of the draft stays
    feasible: what remains is always a piece of one order that fits, and cannot deadlock.
    None if the draft's own orders wait for each other.

    Args:
        draft: cut from one global order that respects the dependencies.
            After an input gradient the weight gradient is added where the rank has nothing better
            to do, or no memory left.
        max_live: activations of single stages that a rank may hold; the draft itself must fit, with
            weight gradients right behind their input gradients.
        ahead: what may overtake actions that are not ready.
    """
    ticks = costs.ticks(placement)
    durations, links = ticks.durations, ticks.links
    rank_of, depth = placement.rank_of, placement.model_stages
    ranks = range(placement.num_ranks)

    # Position of each action in its rank's draft, by stage and microbatch.
    place_of: dict[bool, list[int]] = {
        forward: [-1] * (placement.num_stages * num_microbatches) for forward in (True, False)
    }
    for actions in draft:
        for place, (stage, kind, microbatch) in enumerate(actions):
            place_of[kind is Kind.F][stage * num_microbatches + microbatch] = place

    ready_forward: list[list[int]] = [[] for _ in ranks]
    ready_backward: list[list[int]] = [[] for _ in ranks]
    for rank in ranks:
        for place, (stage, kind, _) in enumerate(draft[rank]):
            if kind is Kind.F and stage % depth == 0:
                ready_forward[rank].append(place)  # ascending, so already a heap
    unweighted: list[deque[Action]] = [deque() for _ in ranks]  # input gradient done
    done = [bytearray(len(actions)) for actions in draft]
    first_open = [0] * len(ranks)  # every place before it is done
    live = [0] * len(ranks)  # without activations that only wait for their weight gradient
    held = [0] * len(ranks)  # with them
    running: list[Action | None] = [None] * len(ranks)
    orders: list[list[Action]] = [[] for _ in ranks]
    make = tuple.__new__
    finish, arrive_forward, arrive_backward = 0, 1, 2
    events: list[tuple[int, int, int, int]] = []  # (time, what, rank, place)

    def may_overtake(rank: int, place: int) -> bool:
        """Whether a forward may run now and keep its activation up to its place in the draft."""
        if ahead is not Ahead.EVERYTHING:
            return False
        most = planned = live[rank]
        for index in range(first_open[rank], place):
            if not done[rank][index]:
                planned += 1 if draft[rank][index].kind is Kind.F else -1
                if planned > most:
                    most = planned
        return most < max_live

    now, touched = 0, list(ranks)
    while True:
        for rank in touched:
            if running[rank] is not None:
                continue
            forwards, backwards = ready_forward[rank], ready_backward[rank]
            next_place = first_open[rank]
            if (
                forwards
                and held[rank] < max_live
                and (not backwards or forwards[0] < backwards[0])
                and (forwards[0] == next_place or may_overtake(rank, forwards[0]))
            ):
                place = heappop(forwards)
                live[rank] += 1
                held[rank] += 1
            elif backwards and (ahead is not Ahead.NOTHING or backwards[0] == next_place):
                place = heappop(backwards)
                live[rank] -= 1
                held[rank] -= 1
            elif unweighted[rank]:
                place = -1
                held[rank] -= 1
            else:
                continue
            if place < 0:
                stage, _, microbatch = unweighted[rank].popleft()
                kind = Kind.W
                action = make(Action, (stage, kind, microbatch))
            else:
                action = draft[rank][place]
                stage, kind, _ = action
                done[rank][place] = 1
                if place == next_place:
                    following = done[rank].find(0, place)
                    first_open[rank] = following if following >= 0 else len(done[rank])
                if kind is Kind.I:
                    held[rank] += 1  # until its weight gradient
            running[rank] = action
            orders[rank].append(action)
            heappush(events, (now + durations[kind][stage], finish, rank, 0))
        if not events:
            break

        now = events[0][0]
        touched = []
        while events and events[0][0] == now:
            _, what, rank, place = heappop(events)
            touched.append(rank)
            if what == arrive_forward:
                heappush(ready_forward[rank], place)
                continue
            if what == arrive_backward:
                heappush(ready_backward[rank], place)
                continue
            action = running[rank]
            running[rank] = None
            stage, kind, microbatch = action
            if kind is Kind.W:
                continue
            if kind is Kind.I:
                unweighted[rank].append(action)
            if kind is Kind.F:
                if stage % depth == depth - 1:
                    target, forward = stage, False
                else:
                    target, forward = stage + 1, True
            elif stage % depth:
                target, forward = stage - 1, False
            else:
                continue
            peer = rank_of[target]
            place = place_of[forward][target * num_microbatches + microbatch]
            link = links[rank, peer]
            if link:
                what = arrive_forward if forward else arrive_backward
                heappush(events, (now + link, what, peer, place))
            else:
                heappush(ready_forward[peer] if forward else ready_backward[peer], place)
                touched.append(peer)
    if any(place < len(actions) for place, actions in zip(first_open, draft, strict=True)):
        return None
    return Run(tuple(map(tuple, orders)), now)

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


_make_action = tuple.__new__  # several times faster than Action(...)


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

    # Place of each action in its rank's draft, by stage and microbatch.
    place_of: dict[bool, list[int]] = {
        forward: [-1] * (placement.num_stages * num_microbatches) for forward in (True, False)
    }
    for actions in draft:
        for place, (stage, kind, microbatch) in enumerate(actions):
            place_of[kind is Kind.F][stage * num_microbatches + microbatch] = place

    ranks = [_Rank(actions, max_live, ahead) for actions in draft]
    for rank in ranks:
        for place, (stage, kind, _) in enumerate(rank.draft):
            if kind is Kind.F and stage % depth == 0:
                rank.ready_forward.append(place)  # ascending, so already a heap

    finish, arrive_forward, arrive_backward = 0, 1, 2
    events: list[tuple[int, int, int, int]] = []  # (time, what, rank, place)
    now, touched = 0, list(range(len(ranks)))
    while True:
        for number in touched:
            rank = ranks[number]
            if rank.running is None and (action := rank.start_next()) is not None:
                stage, kind, _ = action
                heappush(events, (now + durations[kind][stage], finish, number, 0))
        if not events:
            break

        now = events[0][0]
        touched = []
        while events and events[0][0] == now:
            _, what, number, place = heappop(events)
            touched.append(number)
            rank = ranks[number]
            if what == arrive_forward:
                heappush(rank.ready_forward, place)
                continue
            if what == arrive_backward:
                heappush(rank.ready_backward, place)
                continue
            stage, kind, microbatch = rank.finish_running()
            if kind is Kind.F:
                forward = stage % depth != depth - 1
                target = stage + 1 if forward else stage
            elif kind is not Kind.W and stage % depth:
                forward, target = False, stage - 1
            else:
                continue
            peer = rank_of[target]
            place = place_of[forward][target * num_microbatches + microbatch]
            link = links[number, peer]
            if link:
                what = arrive_forward if forward else arrive_backward
                heappush(events, (now + link, what, peer, place))
            else:
                consumer = ranks[peer]
                heappush(consumer.ready_forward if forward else consumer.ready_backward, place)
                touched.append(peer)
    if any(rank.first_open < len(rank.draft) for rank in ranks):
        return None
    return Run(tuple(tuple(rank.order) for rank in ranks), now)


class _Rank:
    """What one rank has done of its draft, and what it may do next."""

    __slots__ = (
        "ahead",
        "done",
        "draft",
        "first_open",
        "held",
        "live",
        "max_live",
        "order",
        "ready_backward",
        "ready_forward",
        "running",
        "unweighted",
    )

    def __init__(self, draft: Sequence[Action], max_live: int, ahead: Ahead) -> None:
        self.draft = draft
        self.max_live = max_live
        self.ahead = ahead
        self.ready_forward: list[int] = []  # heaps of places in the draft
        self.ready_backward: list[int] = []
        self.unweighted: deque[Action] = deque()  # input gradient done, weight gradient not
        self.done = bytearray(len(draft))
        self.first_open = 0  # every place before it is done
        self.live = 0  # activations, without those that only wait for their weight gradient
        self.held = 0  # with them
        self.running: Action | None = None
        self.order: list[Action] = []

    def start_next(self) -> Action | None:
        """Start the earliest action of the draft that is ready and may run, else a W."""
        forwards, backwards, next_place = self.ready_forward, self.ready_backward, self.first_open
        if (
            forwards
            and self.held < self.max_live
            and (not backwards or forwards[0] < backwards[0])
            and (forwards[0] == next_place or self._may_overtake(forwards[0]))
        ):
            place = heappop(forwards)
            self.live += 1
            self.held += 1
        elif backwards and (self.ahead is not Ahead.NOTHING or backwards[0] == next_place):
            place = heappop(backwards)
            self.live -= 1
            self.held -= self.draft[place][1] is Kind.B  # I keeps it until W
        elif self.unweighted:
            stage, _, microbatch = self.unweighted.popleft()
            self.held -= 1
            return self._run(_make_action(Action, (stage, Kind.W, microbatch)))
        else:
            return None
        self.done[place] = 1
        if place == next_place:
            following = self.done.find(0, place)
            self.first_open = following if following >= 0 else len(self.done)
        return self._run(self.draft[place])

    def finish_running(self) -> Action:
        action = self.running
        self.running = None
        if action[1] is Kind.I:
            self.unweighted.append(action)
        return action

    def _run(self, action: Action) -> Action:
        self.running = action
        self.order.append(action)
        return action

    def _may_overtake(self, place: int) -> bool:
        """Whether a forward may run now and keep its activation up to its place in the draft."""
        if self.ahead is not Ahead.EVERYTHING:
            return False
        most = planned = self.live
        for index in range(self.first_open, place):
            if not self.done[index]:
                planned += 1 if self.draft[index][1] is Kind.F else -1
                if planned > most:
                    most = planned
        return most < self.max_live

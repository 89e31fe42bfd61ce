"""Whether action lists can block each other, found without running them.

The rules are NCCL's, stricter than gloo's: posting a group of transfers holds nothing up; a
communicator works on one group at a time on each rank, in the order of posting; a group moves
once both ranks have the same group in front, and nothing of it is buffered before; a Compute
waits for the transfer that it reads, a Free for its transfer, and an Exchange that receives what
was announced for the announcement. None of this is a matter of choice or timing, whatever can
happen does in the end, so one run decides for all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hanayo_megatron.lowering.inputs import Input, input_of, input_read_by
from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.operation import (
    Announce,
    Compute,
    Exchange,
    Free,
    Group,
    Operation,
    Transfer,
)
from hanayo_megatron.lowering.rendezvous import Communicator, Rendezvous
from hanayo_megatron.lowering.transfer_faults import find_transfer_faults
from hanayo_megatron.schedule.schedule import ScheduleError

_MOST_FAULTS = 50


class DeadlockError(ScheduleError):
    """Action lists that would wait for each other, or for something that never happens."""


@dataclass(frozen=True)
class Wait:
    """One link of the chain: on ``rank``, ``transfer`` is next and waits for rank ``on``."""

    rank: int
    transfer: Transfer
    on: int
    why: str

    def __str__(self) -> str:
        return f"rank {self.rank} waits for rank {self.on}, with {self.transfer}: {self.why}"


@dataclass(frozen=True)
class Deadlock:
    """Who waits for whom.

    Args:
        waits: each link waits for the next one to end.
        is_cycle: the last link waits for the first; otherwise it waits for what never happens.
    """

    waits: tuple[Wait, ...]
    is_cycle: bool

    def __str__(self) -> str:
        end = "which waits for the first of these" if self.is_cycle else "which never happens"
        return "\n".join(f"  {line}" for line in [*map(str, self.waits), end])


def check_deadlock_free(
    lowered: LoweredSchedule, *, communicator: Communicator = Communicator.PAIR
) -> None:
    """Raise DeadlockError with the wrong transfers, or else with the chain of waits."""
    name = f"schedule {lowered.schedule.name!r}"
    faults = find_transfer_faults(lowered)
    if faults:
        shown = "\n".join(f"  {fault}" for fault in faults[:_MOST_FAULTS])
        raise DeadlockError(f"{name} has {len(faults)} wrong transfers:\n{shown}")
    deadlock = find_deadlock(lowered.programs, communicator=communicator)
    if deadlock is not None:
        raise DeadlockError(
            f"{name} blocks itself with one communicator per {communicator}:\n{deadlock}"
        )


def find_deadlock(
    programs: Sequence[Sequence[Operation]], *, communicator: Communicator = Communicator.PAIR
) -> Deadlock | None:
    """A chain of waits that keeps a rank from its end, or ``None`` if all ranks get there."""
    run = _Run(programs, communicator)
    for rank in range(len(programs)):
        obstacle = run.obstacle(rank)
        if obstacle is not None:
            return _follow(run, rank, obstacle)
    return None


def _follow(run: _Run, rank: int, obstacle: _Obstacle) -> Deadlock:
    """Go from each wait to what it waits for until that closes a cycle or ends."""
    waits: list[Wait] = []
    seen: dict[tuple[int, type, Group], int] = {}
    front = obstacle.front
    if front is None:
        return Deadlock((Wait(rank, obstacle.transfer, rank, obstacle.why),), is_cycle=False)
    while (rank, type(front), front) not in seen:
        seen[rank, type(front), front] = len(waits)
        wait, following = run.explain(rank, front)
        waits.append(wait)
        if following is None:
            return Deadlock(tuple(waits), is_cycle=False)
        rank, front = wait.on, following
    return Deadlock(tuple(waits[seen[rank, type(front), front] :]), is_cycle=True)


class _Needed(NamedTuple):
    """What an operation waits for: that the transfer was announced, or carried out."""

    group: type[Group]
    transfer: Transfer

    def __str__(self) -> str:
        return f"the shape of the {self.transfer}" if self.group is Announce else str(self.transfer)


@dataclass(frozen=True)
class _Obstacle:
    """Why a rank cannot go on."""

    transfer: Transfer
    why: str
    front: Group | None
    """What is in front in the transfer's queue; ``None`` if the transfer is not posted."""


class _Run:
    """The programs, run as far as they can."""

    def __init__(self, programs: Sequence[Sequence[Operation]], communicator: Communicator) -> None:
        self._programs = programs
        self._positions = [0 for _ in programs]
        self._done: set[_Needed] = set()
        self._inputs = [_transfer_of_input(program) for program in programs]
        self._announced = [any(type(o) is Announce for o in program) for program in programs]
        self._runnable = list(range(len(programs)))
        self._rendezvous = Rendezvous(len(programs), communicator, self._complete)
        while self._runnable:
            self._continue(self._runnable.pop())

    def _continue(self, rank: int) -> None:
        program = self._programs[rank]
        for position in range(self._positions[rank], len(program)):
            operation = program[position]
            if (needed := self._needed(rank, operation)) and needed not in self._done:
                self._positions[rank] = position
                return
            if isinstance(operation, Announce | Exchange):
                self._rendezvous.post(rank, operation, 0)
        self._positions[rank] = len(program)

    def _complete(self, rank: int, group: Group, start: int) -> int:
        self._done.update(_Needed(type(group), transfer) for transfer in _all(group))
        self._runnable += (rank, group.peer)
        return start

    def _needed(self, rank: int, operation: Operation) -> _Needed | None:
        """What must have happened before the rank can get past the operation."""
        if isinstance(operation, Free):
            return _Needed(Exchange, operation.transfer)
        if isinstance(operation, Exchange) and operation.receives and self._announced[rank]:
            return _Needed(Announce, operation.receives[0])
        if isinstance(operation, Compute):
            transfer = self._inputs[rank].get(input_read_by(operation.action))
            return transfer and _Needed(Exchange, transfer)
        return None

    def obstacle(self, rank: int) -> _Obstacle | None:
        """What keeps the rank from the end of its program and of its transfers, if anything."""
        program, position = self._programs[rank], self._positions[rank]
        if position == len(program):
            front = self._rendezvous.any_posted(rank)
            if front is None:
                return None
            return _Obstacle(_first(front), "is at the end of its list", front)
        operation = program[position]
        needed = self._needed(rank, operation)
        transfer = needed.transfer
        why = f"is at position {position}, where {_name(operation)} needs {needed}"
        peer = transfer.source if transfer.target == rank else transfer.target
        queue = list(self._rendezvous.posted(rank, peer))
        if not any(type(g) is needed.group and _carries(g, transfer) for g in queue):
            return _Obstacle(transfer, f"{why}, which its list posts only later or never", None)
        return _Obstacle(transfer, why, queue[0])

    def explain(self, rank: int, front: Group) -> tuple[Wait, Group | None]:
        """Why the group in front does not move, and what must end on the peer before it can."""
        peer, transfer = front.peer, _first(front)
        if peer == rank:
            return Wait(rank, transfer, peer, "no rank can send to itself"), None
        theirs = next(self._rendezvous.posted(peer, rank), None)
        if theirs is not None:
            if theirs.peer == rank and any(_carries(theirs, t) for t in _all(front)):
                why = f"rank {peer} posted it in another group, {_contents(theirs)}"
                return Wait(rank, transfer, peer, f"{why}; here {_contents(front)}"), None
            why = f"rank {peer} has {_first(theirs)} in front of it"
            return Wait(rank, transfer, peer, why), theirs
        obstacle = self.obstacle(peer)
        why = f"rank {peer} has not posted it"
        if obstacle is None:
            return Wait(rank, transfer, peer, f"{why} and is at the end of its list"), None
        return Wait(rank, transfer, peer, f"{why}; it {obstacle.why}"), obstacle.front


def _name(operation: Operation) -> str:
    if isinstance(operation, Compute):
        return str(operation.action)
    return "the free" if isinstance(operation, Free) else "the exchange"


def _transfer_of_input(program: Sequence[Operation]) -> dict[Input | None, Transfer]:
    """Received transfers by what they bring."""
    return {
        input_of(transfer): transfer
        for operation in program
        if isinstance(operation, Exchange)
        for transfer in operation.receives
    }


def _all(group: Group) -> tuple[Transfer, ...]:
    return group.sends + group.receives


def _first(group: Group) -> Transfer:
    return _all(group)[0]


def _carries(group: Group, transfer: Transfer) -> bool:
    return transfer in group.sends or transfer in group.receives


def _contents(group: Group) -> str:
    what = "announcements, " if isinstance(group, Announce) else ""
    return f"{what}{len(group.sends)} sent and {len(group.receives)} received"

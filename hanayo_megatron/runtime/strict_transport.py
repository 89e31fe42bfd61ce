"""An in-process transport as strict as NCCL, and stricter than gloo.

Ranks are threads. A group starts when both sides have posted it and it is at the head of the
in-order queues of its communicator; nothing is buffered, so a send ends only when its receive was
posted; both sides' groups must hold the same transfers in the same order, with the same dtypes and
sizes. Received data is there when the receiver has waited for it and not before; what is sent must
stay untouched until the sender has waited. When every rank that still runs is waiting and no group
can start, all of them get an error that says who waits for whom.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from hanayo_megatron.runtime.transport import Parcel, TransportError

Communicators = Literal["pair", "group"]


@dataclass(eq=False)
class _Posted:
    """One side of a group."""

    rank: int
    peer: int
    sends: Sequence[Parcel]
    receives: Sequence[Parcel]
    done: bool = False
    sent: list[torch.Tensor] = field(default_factory=list)
    """What the sends held when the group ran."""
    arrived: list[torch.Tensor] = field(default_factory=list)
    """What the receives get once they are waited for."""
    waited_for: bool = False

    def __str__(self) -> str:
        parts = [f"send {p.transfer}" for p in self.sends]
        parts += [f"receive {p.transfer}" for p in self.receives]
        return f"rank {self.rank} with rank {self.peer}: " + ", ".join(parts)


@dataclass(eq=False)
class StrictNetwork:
    """Connects the threads of one pipeline.

    Args:
        num_ranks: number of threads that take part.
        communicators: ``pair``: a queue per pair of ranks; ``group``: one for the whole pipeline.
    """

    num_ranks: int
    communicators: Communicators = "pair"
    _lock: threading.Condition = field(default_factory=threading.Condition)
    _queues: dict[tuple[int, int | None], deque[_Posted]] = field(default_factory=dict)
    _waiting: dict[int, _Posted] = field(default_factory=dict)
    _finished: set[int] = field(default_factory=set)
    _error: TransportError | None = None

    def transport(self, rank: int) -> StrictTransport:
        return StrictTransport(self, rank)

    def post(self, group: _Posted) -> None:
        """Append to the rank's queue and start every group that can start."""
        with self._lock:
            self._raise_error()
            if group.rank == group.peer:
                self._fail(f"a rank must not send to itself: {group}")
            self._queue(group.rank, group.peer).append(group)
            self._advance(group.rank, group.peer)

    def wait(self, group: _Posted) -> None:
        """Block the calling rank until its group has completed."""
        with self._lock:
            while not group.done:
                self._raise_error()
                self._waiting[group.rank] = group
                self._detect_deadlock()
                self._lock.wait()
            self._waiting.pop(group.rank, None)
            if not group.waited_for:
                group.waited_for = True
                self._hand_over(group)

    def finish(self, rank: int, error: BaseException | None = None) -> None:
        """The rank's thread has ended; with an error, all others end too."""
        with self._lock:
            self._finished.add(rank)
            if error is not None and self._error is None:
                self._error = TransportError(f"rank {rank} failed: {error!r}")
                self._lock.notify_all()
            self._detect_deadlock()

    def run(self, work: Callable[[int, StrictTransport], object]) -> list[object]:
        """Call ``work(rank, transport)`` in a thread per rank; their results, by rank.

        Raises the first rank's error; TransportError for a deadlock, or for a group that a rank
        left behind posted and unmatched.
        """
        results: list[object] = [None] * self.num_ranks
        errors: list[BaseException] = []

        def main(rank: int) -> None:
            failure: BaseException | None = None
            try:
                results[rank] = work(rank, self.transport(rank))
            except BaseException as error:
                failure = error
                errors.append(error)
            self.finish(rank, failure)

        threads = [threading.Thread(target=main, args=(r,)) for r in range(self.num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        left = [group for queue in self._queues.values() for group in queue]
        if left:
            raise TransportError(f"never matched by the peer: {'; '.join(map(str, left))}")
        return results

    def _queue(self, rank: int, peer: int) -> deque[_Posted]:
        key = (rank, None if self.communicators == "group" else peer)
        return self._queues.setdefault(key, deque())

    def _advance(self, *ranks: int) -> None:
        """Complete groups at the heads of both sides' queues until none is left."""
        touched = list(ranks)
        while touched:
            rank = touched.pop()
            queues = [q for (owner, _), q in self._queues.items() if owner == rank and q]
            for queue in queues:
                mine = queue[0]
                others = self._queues.get(
                    (mine.peer, None if self.communicators == "group" else rank)
                )
                if not others or others[0].peer != rank:
                    continue
                theirs = others[0]
                self._complete(mine, theirs)
                queue.popleft()
                others.popleft()
                touched += [rank, mine.peer]
                self._lock.notify_all()

    def _complete(self, mine: _Posted, theirs: _Posted) -> None:
        for sender, receiver in ((mine, theirs), (theirs, mine)):
            sent = [(p.transfer, p.part) for p in sender.sends]
            if sent != [(p.transfer, p.part) for p in receiver.receives]:
                self._fail(f"groups do not match: {mine} | {theirs}")
            for (transfer, source, part), (_, target, _) in zip(
                sender.sends, receiver.receives, strict=True
            ):
                if (source.dtype, source.numel()) != (target.dtype, target.numel()):
                    self._fail(
                        f"{transfer}, part {part}: sent {source.dtype} {tuple(source.shape)}, "
                        f"expected {target.dtype} {tuple(target.shape)}"
                    )
            sender.sent = [p.tensor.detach().clone() for p in sender.sends]
            receiver.arrived = sender.sent
        mine.done = theirs.done = True

    def _hand_over(self, group: _Posted) -> None:
        """The rank has waited: its receives get their data, its sends must be as they were."""
        for (_, target, _), data in zip(group.receives, group.arrived, strict=True):
            target.view(-1).copy_(data.reshape(-1))
        for parcel, data in zip(group.sends, group.sent, strict=True):
            if not _same_bits(parcel.tensor, data):
                self._fail(f"overwritten before its send had ended: {parcel.transfer}")

    def _detect_deadlock(self) -> None:
        stuck = {r: g for r, g in self._waiting.items() if not g.done}
        if self._error is None and stuck and len(stuck) + len(self._finished) == self.num_ranks:
            self._error = TransportError(
                "deadlock: " + "; ".join(f"{group}" for _, group in sorted(stuck.items()))
            )
            self._lock.notify_all()

    def _fail(self, text: str) -> None:
        self._error = TransportError(text)
        self._lock.notify_all()
        raise self._error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Also where there are NaNs, which equal nothing."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


@dataclass(frozen=True)
class StrictTransport:
    """One rank's end of a StrictNetwork."""

    network: StrictNetwork
    rank: int

    def exchange(
        self, peer: int, *, sends: Sequence[Parcel], receives: Sequence[Parcel]
    ) -> list[_StrictHandle]:
        group = _Posted(self.rank, peer, sends, receives)
        self.network.post(group)
        return [_StrictHandle(self.network, group)] * (len(sends) + len(receives))


@dataclass(frozen=True)
class _StrictHandle:
    network: StrictNetwork
    group: _Posted

    def wait(self) -> None:
        self.network.wait(self.group)

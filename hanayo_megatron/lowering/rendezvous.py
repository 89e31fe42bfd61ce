"""How groups of transfers get through communicators that keep order and buffer nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum

from hanayo_megatron.lowering.operation import Group


class Communicator(StrEnum):
    """The layouts that torch.distributed offers."""

    PAIR = "pair"
    """One communicator for every pair of ranks: transfers with one peer keep their order."""
    GROUP = "group"
    """One communicator for the pipeline group: all transfers of a rank keep their order."""


class Rendezvous:
    """Queues of posted groups; a group runs once it is in front on both of its ranks.

    Args:
        num_ranks: P.
        communicator: the layout.
        run: called with (rank, group as that rank posted it, start) when a group starts;
            returns its end. Starts and ends are times on any common clock.
    """

    def __init__(
        self, num_ranks: int, communicator: Communicator, run: Callable[[int, Group, int], int]
    ) -> None:
        self._run = run
        # By rank and peer; with one communicator for all peers the same queue stands at each.
        self._queues = [
            [_Queue() for _ in range(num_ranks)]
            if communicator is Communicator.PAIR
            else [_Queue()] * num_ranks
            for _ in range(num_ranks)
        ]

    def post(self, rank: int, group: Group, now: int) -> None:
        """Put a group in the rank's queue, and run whatever that allows to run."""
        queue = self._queues[rank][group.peer]
        queue.posted.append((now, rank, group))
        if len(queue.posted) == 1:
            self._advance(queue)

    def posted(self, rank: int, peer: int) -> Iterator[Group]:
        """Unfinished groups in the rank's queue that serves the peer, front first."""
        return (group for _, _, group in self._queues[rank][peer].posted)

    def any_posted(self, rank: int) -> Group | None:
        """The front of some queue of the rank that still holds an unfinished group."""
        fronts = (queue.posted[0][2] for queue in self._queues[rank] if queue.posted)
        return next(fronts, None)

    def is_empty(self) -> bool:
        """Whether all that was posted has run."""
        return not any(queue.posted for queues in self._queues for queue in queues)

    def _advance(self, changed: _Queue) -> None:
        """Run groups from the front of a queue that changed, and of those that change by it."""
        unseen = [changed]
        while unseen:
            queue = unseen.pop()
            while queue.posted:
                now, rank, group = queue.posted[0]
                other = self._queues[group.peer][rank]
                if not other.posted or other is queue:
                    break
                their_now, _, theirs = other.posted[0]
                if (
                    type(theirs) is not type(group)
                    or theirs.peer != rank
                    or theirs.receives != group.sends
                    or theirs.sends != group.receives
                ):
                    break
                queue.posted.popleft()
                other.posted.popleft()
                start = max(now, their_now, queue.free, other.free)
                queue.free = other.free = self._run(rank, group, start)
                unseen.append(other)


class _Queue:
    """Groups of one rank on one communicator, in the order of posting."""

    __slots__ = ("free", "posted")

    def __init__(self) -> None:
        self.posted: deque[tuple[int, int, Group]] = deque()
        self.free = 0
        """When the last group that ran has ended."""

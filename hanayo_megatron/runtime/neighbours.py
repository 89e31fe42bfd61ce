"""Watches over the next rank that has not ended, for one rank of a job."""

from __future__ import annotations

import logging
import math
import time

from hanayo_megatron.runtime.lifeline import Lifeline
from hanayo_megatron.runtime.notice_board import Notice, NoticeBoard, Phase
from hanayo_megatron.runtime.patience import Patience

logger = logging.getLogger(__name__)


class Neighbours:
    """The ranks behind one rank, in a ring: those that have ended, and the first that has not.

    Args:
        board: shared by all ranks.
        rank, num_ranks: of the whole job.
        patience: how long to wait for what.
    """

    def __init__(
        self, board: NoticeBoard, *, rank: int, num_ranks: int, patience: Patience
    ) -> None:
        self._board = board
        self._rank = rank
        self._num_ranks = num_ranks
        self._patience = patience
        self._next = (rank + 1) % num_ranks
        self._lifeline: Lifeline | None = None
        self._heard: tuple[int, float] = (-1, time.monotonic())
        self._told_of_obstacle = False
        self.ended: dict[int, tuple[Notice, float]] = {}
        """By rank, what it said as it ended in good order, and when this was first seen."""

    def loss(self) -> str | None:
        """Look once. Why the job must end; None: the next rank that has not ended lives."""
        if self._next == self._rank:
            return None
        holds = None if self._lifeline is None else self._lifeline.holds()
        now = time.monotonic()
        # Read behind the look at the lifeline: who ends in good order says so before it is cut.
        notice = self._board.read(self._next)
        if notice is not None and notice.phase is Phase.ENDED:
            self.ended[self._next] = (notice, now)
            self._turn_to((self._next + 1) % self._num_ranks, now)
            return None
        last = f"The last it said: {'nothing so far' if notice is None else notice.doing}"
        if holds is False:
            return (
                f"rank {self._next} is gone (killed, crashed, or its machine is down): the "
                f"connection that it was watched by is cut. {last}"
            )
        if notice is not None and notice.beat != self._heard[0]:
            self._heard = (notice.beat, now)
            self._hold_on(notice)
            return None
        silent = now - self._heard[1]
        if silent <= self._allowed_silence(notice, holds):
            return None
        if holds:
            return f"rank {self._next} lives, but has not said anything for {silent:.0f} s. {last}"
        return (
            f"rank {self._next} is gone: no sign of life for {silent:.0f} s (killed, crashed, "
            f"or its machine is down). {last}"
        )

    def close(self) -> None:
        """Hold on to nobody any more."""
        if self._lifeline is not None:
            self._lifeline.close()

    def _turn_to(self, rank: int, now: float) -> None:
        self.close()
        self._next, self._lifeline, self._heard = rank, None, (-1, now)

    def _hold_on(self, notice: Notice) -> None:
        """To the next rank, which has just given a sign of life."""
        if self._lifeline is None:
            self._lifeline = Lifeline(notice.anchor)
        elif self._lifeline.obstacle is not None and not self._told_of_obstacle:
            self._told_of_obstacle = True
            logger.warning(
                "rank %d cannot connect to rank %d at %s port %d (%s); if that rank dies, it takes "
                "up to %.0f s to be noticed. Let processes of this job connect to each other on "
                "all ports",
                *(self._rank, self._next, *notice.anchor, self._lifeline.obstacle),
                max(self._patience.silence, self._patience.hang),
            )

    def _allowed_silence(self, notice: Notice | None, holds: bool | None) -> float:
        patience = self._patience
        if holds:
            return patience.hang if notice is not None and notice.mid_step else math.inf
        if self._board.alarm:
            return patience.silence_in_alarm
        return patience.silence if notice is not None and notice.steps > 0 else patience.hang

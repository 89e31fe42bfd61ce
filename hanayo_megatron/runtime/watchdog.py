"""Ends a job that hangs, or that has lost a rank, with a text that says why.

Every rank has a thread that puts a notice on the board about once a second, and that holds a
lifeline to the next rank that has not ended. It ends the job if

- its own rank has been in one place of a step for longer than allowed;
- the next rank's lifeline is cut: killed, crashed, or its machine is down;
- a rank has ended by itself while the others go on;
- another rank gave a reason to end the job;
- this process was told to end (SIGTERM), and no such reason was found within seconds;
- the store of torch.distributed is gone, and with it the rank that holds it; a second thread ends
  the job if the store does not answer, which the first one would wait for.

The thread that trains takes no part in this, so that nothing slows a step and a hang in native code
does not matter. Of N ranks each makes four small requests a second to the store.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from hanayo_megatron.runtime.lifeline import Anchor
from hanayo_megatron.runtime.neighbours import Neighbours
from hanayo_megatron.runtime.notice_board import Notice, NoticeBoard, Phase
from hanayo_megatron.runtime.patience import Patience
from hanayo_megatron.runtime.progress import Progress

logger = logging.getLogger(__name__)


class Watchdog:
    """One rank's threads.

    Args:
        board: shared by all ranks.
        anchor: of this process; closed when the watchdog ends.
        rank, num_ranks: of the whole job.
        progress: of this rank.
        patience: how long to wait for what.
        holds_store: whether the store ends with this process.
        leave: ends this process at once, with the exit code given; a test may replace it.
    """

    def __init__(
        self,
        board: NoticeBoard,
        anchor: Anchor,
        *,
        rank: int,
        num_ranks: int,
        progress: Progress,
        patience: Patience,
        holds_store: bool,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self._board = board
        self._anchor = anchor
        self._rank = rank
        self._num_ranks = num_ranks
        self._progress = progress
        self._patience = patience
        self._holds_store = holds_store
        self._leave = leave
        self._beat = 0
        self._neighbours = Neighbours(board, rank=rank, num_ranks=num_ranks, patience=patience)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._alarmed = False
        self._failure: str | None = None
        self._asked: float | None = None
        self._thread = threading.Thread(target=self._run, name="pipeline-watchdog", daemon=True)
        self._over = threading.Event()
        self._store_thread = threading.Thread(
            target=self._watch_store, name="pipeline-watchdog-store", daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        self._store_thread.start()

    def fail(self, reason: str, *, lost_connection: bool) -> None:
        """The thread that trains has failed; call it before the process ends.

        Returns once the other ranks can know. After a lost connection it first waits for the rank
        that is gone to be found, which ends this process.
        """
        if lost_connection:
            self._alarmed = True
            self._wake.set()
            patience = self._patience
            longest = max(patience.silence_in_alarm, patience.stranded)
            self._thread.join(longest + 4 * patience.interval)
        self._failure = reason
        self._wake.set()
        self._thread.join(4 * self._patience.interval)

    def ask_to_end(self) -> None:
        """This process is to end; likely another rank has died, which takes a moment to be found.

        Any thread may call it. It ends the process.
        """
        self._asked = self._asked or time.monotonic()
        self._wake.set()

    def stop(self) -> None:
        """The rank ends in good order. Where the store is held, wait for the others to end too."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._round():
                self._wake.wait(self._patience.interval)
                self._wake.clear()
            self._say(Phase.ENDED)
            if self._holds_store:
                self._wait_for_others(self._patience.end, while_heard=True)
        except RuntimeError as error:  # what stores raise
            self._lost_store(error)
        finally:
            self._over.set()
            self._anchor.close()
            self._neighbours.close()

    def _round(self) -> bool:
        """Say, look and judge once; False when this rank is to end in good order."""
        if self._stop.is_set():
            return False
        self._say(Phase.RUNNING)
        if self._alarmed:
            self._board.sound_alarm()
        if self._failure is not None:
            ranks = f"\n{self._all_ranks()}" if self._alarmed else ""
            self._board.end_job(f"rank {self._rank} failed: {self._failure}{ranks}")
            return False
        reason = self._board.end
        if reason is not None:
            self._end(reason)
            return False
        reason = self._hang() or self._neighbours.loss() or self._early_end()
        if reason is not None:
            self._board.end_job(f"{reason}.\n{self._all_ranks()}")
            self._wake.set()
        elif self._asked is not None and time.monotonic() - self._asked > self._patience.asked:
            self._end(
                "SIGTERM, from the launcher or a person, and no rank is known to have failed; in "
                f"{self._progress.describe()}",
                exit_code=128 + signal.SIGTERM,
            )
            return False
        return True

    def _say(self, phase: Phase) -> None:
        self._beat += 1
        progress = self._progress
        self._board.put(
            self._rank,
            Notice(
                self._beat,
                phase,
                progress.steps,
                progress.mid_step,
                progress.describe(),
                self._anchor.address,
                time.time(),
            ),
        )

    def _hang(self) -> str | None:
        """Why the job must end; None: this rank gets on."""
        seconds = self._seconds_in_one_place()
        if seconds <= self._patience.hang:
            return None
        return (
            f"rank {self._rank} has been in one place for {seconds:.0f} s: "
            f"{self._progress.describe()}"
        )

    def _seconds_in_one_place(self) -> float:
        return self._progress.seconds_without_change() if self._progress.in_step else 0.0

    def _early_end(self) -> str | None:
        """Why the job must end; None: whoever has ended was through."""
        now, steps = time.monotonic(), self._progress.steps
        is_stranded = self._seconds_in_one_place() > self._patience.stranded
        for rank, (notice, since) in self._neighbours.ended.items():
            ended = f"rank {rank} has ended by itself (its exit code is not known here)"
            if notice.mid_step and now - since > self._patience.stranded:
                return f"{ended} in the middle of {notice.doing}"
            if is_stranded and notice.steps < steps:
                return (
                    f"{ended} before step {notice.steps + 1}; rank {self._rank} waits in "
                    f"{self._progress.describe()}"
                )
            if now - since > self._patience.stranded and self._board.alarm:
                return f"{ended} after {notice.doing}; a rank that goes on has lost a connection"
        return None

    def _all_ranks(self) -> str:
        lines = ["What every rank last said:"]
        for rank in range(self._num_ranks):
            notice = self._board.read(rank)
            if notice is None:
                lines.append(f"  rank {rank}: nothing heard of it")
            else:
                ended = "has ended; before, " if notice.phase is Phase.ENDED else ""
                age = max(0.0, time.time() - notice.time)
                lines.append(f"  rank {rank}, {age:.1f} s ago: {ended}{notice.doing}")
        return "\n".join(lines)

    def _wait_for_others(self, seconds: float, *, while_heard: bool = False) -> None:
        """Until they have ended, or for so long; ``while_heard``: from the last sign of life on.

        A rank may be at work long after this one, with its last checkpoint or the user's own code.
        """
        deadline = time.monotonic() + seconds
        notices: dict[int, Notice | None] = {}
        waiting = set(range(self._num_ranks)) - {self._rank}
        while waiting and time.monotonic() < deadline:
            before, notices = notices, {rank: self._board.read(rank) for rank in waiting}
            self._beat += 1  # the store answers
            if while_heard and notices != before:
                deadline = time.monotonic() + seconds
            waiting = {r for r, n in notices.items() if n is None or n.phase is not Phase.ENDED}
            time.sleep(0.05)

    def _watch_store(self) -> None:
        """Counts its own rounds: time also passes while native code holds all threads up."""
        interval, beat, rounds = self._patience.interval, 0, 0
        while not self._over.wait(interval):
            rounds = rounds + 1 if self._beat == beat else 0
            beat = self._beat
            if rounds * interval > self._patience.store:
                self._tell(
                    f"the store of torch.distributed has not answered for {rounds * interval:.0f} "
                    "s: the machine of rank 0, or of the launcher that holds the store, is down or "
                    "cannot be reached"
                )
                self._leave(1)
                return

    def _lost_store(self, error: RuntimeError) -> None:
        """Normal only if this rank, too, is at its end."""
        if self._stop.wait(self._patience.silence_in_alarm):
            return
        self._end(
            "the store of torch.distributed is gone, and with it rank 0 or the launcher that holds "
            f"it (killed, crashed, or its machine is down): {str(error).splitlines()[0]}"
        )

    def _end(self, reason: str, *, exit_code: int = 1) -> None:
        self._tell(reason)
        try:
            self._say(Phase.ENDED)
            if self._holds_store:
                self._wait_for_others(3 * self._patience.interval)
        except RuntimeError:
            logger.debug("the store ended first")
        self._leave(exit_code)

    def _tell(self, reason: str) -> None:
        sys.stdout.flush()
        sys.stderr.write(f"hanayo_megatron: job ended on rank {self._rank}: {reason}\n")
        sys.stderr.flush()

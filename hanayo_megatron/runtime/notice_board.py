"""What ranks tell each other about themselves, in the store of torch.distributed."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import NamedTuple

import torch.distributed as dist

from hanayo_megatron.runtime.lifeline import Address


class Phase(StrEnum):
    """Of a rank's life."""

    RUNNING = "running"
    ENDED = "ended"


class Notice(NamedTuple):
    """What a rank last said of itself.

    Args:
        beat: changes with every notice.
        steps: begun so far.
        mid_step: whether the last of them has not ended.
        doing: one line for people.
        anchor: where the rank's process can be held on to.
        time: when, in seconds of ``time.time``; clocks of machines may differ.
    """

    beat: int
    phase: Phase
    steps: int
    mid_step: bool
    doing: str
    anchor: Address
    time: float


class NoticeBoard:
    """Notices of all ranks, the alarm, and the reason to end the job.

    Every method is one or two quick requests; none waits for another rank. Raises what the store
    raises when it is gone.

    Args:
        store: a connection that no other thread uses.
    """

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def put(self, rank: int, notice: Notice) -> None:
        self._store.set(f"notice/{rank}", json.dumps(notice))

    def read(self, rank: int) -> Notice | None:
        """None: the rank has said nothing so far."""
        key = f"notice/{rank}"
        if not self._store.check([key]):
            return None
        beat, phase, steps, mid_step, doing, anchor, time = json.loads(self._store.get(key))
        return Notice(beat, Phase(phase), steps, mid_step, doing, Address(*anchor), time)

    def sound_alarm(self) -> None:
        """Some rank has lost a connection: look for the one that is gone."""
        self._store.set("alarm", "1")

    @property
    def alarm(self) -> bool:
        return self._store.check(["alarm"])

    def end_job(self, reason: str) -> None:
        """Give the reason to end the job; the first one counts."""
        # Names of files in the text of an error may hold what the store refuses.
        sendable = reason.encode(errors="backslashreplace").decode()
        self._store.compare_set("end", "", sendable)

    @property
    def end(self) -> str | None:
        """Why the job must end; None: it goes on."""
        return self._store.get("end").decode() if self._store.check(["end"]) else None

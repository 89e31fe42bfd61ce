"""How long a job's watchdogs wait for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds.

    Args:
        hang: in one place of a step; also without a sign of life in a step while the lifeline
            holds, and before the first step where there is none: native code may hold Python up.
        silence: without a sign of life once a rank has begun a step, where no lifeline reaches it.
        silence_in_alarm: the same while some rank reports a lost connection.
        stranded: in one place of a step that another rank, which has ended, did not begin or left;
            the others may be about to run into the error that it ended by.
        asked: for the reason to be found after a request to end, such as a launcher's SIGTERM.
        store: for an answer of the store.
        end: without a sign of life of the ranks that have not ended, on the one that holds the
            store and has ended.
        interval: between two notices of a rank.
    """

    hang: float
    silence: float = 120.0
    silence_in_alarm: float = 4.0
    stranded: float = 4.0
    asked: float = 4.0
    store: float = 30.0
    end: float = 10.0
    interval: float = 1.0

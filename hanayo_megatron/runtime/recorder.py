"""Measures when a rank's computes run and how long they wait for transfers."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import torch

from hanayo_megatron.lowering.operation import Compute, Operation, Transfer


class Span(NamedTuple):
    """Something that took time, in seconds of this host's ``time.perf_counter``.

    ``what`` is an action's cell such as ``3F0``, or the transfer that was waited for.
    """

    start: float
    end: float
    what: str


class Clock(Protocol):
    """Marks points in a rank's work."""

    def mark(self) -> object:
        """This point."""
        ...

    def seconds(self, mark: object) -> float:
        """The time of a mark by ``time.perf_counter``; asked only when the work is done."""
        ...

    def finish(self) -> None:
        """Wait until all marks have been passed."""
        ...


class Recorder:
    """An observer of one executor's run.

    A wait is inside the compute that needs the transfer; the compute counts from its end.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: list[tuple[object, object, str]] = []
        self._start: object = None
        self._wait: object = None

    def begin(self, operation: Operation) -> None:
        if isinstance(operation, Compute):
            self._start = self._clock.mark()

    def end(self, operation: Operation) -> None:
        if isinstance(operation, Compute):
            self._marks.append((self._start, self._clock.mark(), str(operation.action)))

    def begin_wait(self, transfer: Transfer) -> None:
        self._wait = self._clock.mark()

    def end_wait(self, transfer: Transfer) -> None:
        self._start = self._clock.mark()
        what = f"wait for {transfer.source_stage}{transfer.kind}{transfer.microbatch}"
        self._marks.append((self._wait, self._start, f"{what} from rank {transfer.source}"))

    def spans(self) -> list[Span]:
        """All that was recorded, once the work is done."""
        self._clock.finish()
        seconds = self._clock.seconds
        return [Span(seconds(start), seconds(end), what) for start, end, what in self._marks]


class HostClock:
    """Where work is done when it is issued."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, mark: float) -> float:
        return mark

    def finish(self) -> None:
        pass


class CudaClock:
    """Events on the current stream: when the GPU gets there, not when the host does."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._start = self.mark()
        self._started = time.perf_counter()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, mark: torch.cuda.Event) -> float:
        return self._started + self._start.elapsed_time(mark) / 1000

    def finish(self) -> None:
        torch.cuda.synchronize()


class NvtxRanges:
    """An observer that names every operation and wait to NVIDIA's profilers."""

    def begin(self, operation: Operation) -> None:
        if isinstance(operation, Compute):
            torch.cuda.nvtx.range_push(str(operation.action))

    def end(self, operation: Operation) -> None:
        if isinstance(operation, Compute):
            torch.cuda.nvtx.range_pop()

    def begin_wait(self, transfer: Transfer) -> None:
        torch.cuda.nvtx.range_push(f"wait for the {transfer}")

    def end_wait(self, transfer: Transfer) -> None:
        torch.cuda.nvtx.range_pop()

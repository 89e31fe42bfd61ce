"""Streams and events of a device that has no queue: every kernel is finished when it returns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any


class Stream:
    """Answers as `torch.cuda.Stream`; waiting and synchronising have nothing to wait for."""

    device_index = 0
    cuda_stream = 0
    stream_id = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.priority = priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, 0

    def wait_stream(self, stream: Stream) -> None:
        pass

    def wait_event(self, event: Event) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


class Event:
    """Answers as `torch.cuda.Event`; `elapsed_time` is the host's wall clock in milliseconds."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._recorded = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self._recorded = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return (end._recorded - self._recorded) * 1e3


THE_STREAM = Stream()


def current_stream(device: Any = None) -> Stream:
    """The one stream there is: work runs in program order."""
    return THE_STREAM


def default_stream(device: Any = None) -> Stream:
    return THE_STREAM


@contextlib.contextmanager
def stream_context(stream: Stream | None) -> Iterator[None]:
    """`with torch.cuda.stream(s)`: all streams are the same one."""
    yield

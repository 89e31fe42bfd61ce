"""Where a rank is in its work; written by the thread that trains, read by another one."""

from __future__ import annotations

import time
from collections import deque

import torch

from hanayo_megatron.lowering.operation import (
    Announce,
    Compute,
    Exchange,
    Free,
    Operation,
    SyncGradients,
    Transfer,
)

_MOST_MARKS = 4096


class Progress:
    """An observer of executors, step after step, that remembers only what goes on now.

    On a GPU the thread that trains is ahead of the work. There an event is recorded behind every
    wait for a transfer, and the first event that has not passed tells what the GPU waits for.

    Args:
        on_gpu: whether the work that is issued runs on the CUDA device that is current when a step
            begins, and somebody asks for ``seconds_without_change`` now and then, which lets go of
            events that have passed.
    """

    def __init__(self, *, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._operation: Operation | None = None
        self._transfer: Transfer | None = None
        self._doing = "starting"
        self._left_by = ""
        self._device = -1
        self._position = self._length = 0
        self._changes = 0
        self._seen = (-1, time.monotonic())
        self._marks: deque[tuple[torch.cuda.Event, Transfer]] = deque(maxlen=_MOST_MARKS)
        self._mark_seen: tuple[torch.cuda.Event | None, float] = (None, 0.0)
        self.steps = 0
        """Steps begun so far."""
        self.mid_step = False
        """Whether the thread that trains has begun a step and not ended it."""

    def begin_step(self) -> None:
        """From here to ``end_step`` something must go on all the time."""
        self.steps += 1
        self.mid_step = True
        self._left_by = ""
        if self._on_gpu:
            self._device = torch.cuda.current_device()
        self.note("starting")

    def begin_list(self, num_operations: int) -> None:
        """An executor starts on an action list."""
        self._length, self._position = num_operations, 0

    def end_step(self) -> None:
        """What follows may take any time: validation, checkpoints, the user's code."""
        self.note("behind the pipeline's part of the step")
        self.mid_step = False

    def leave_step(self, error: BaseException) -> None:
        """An error cuts the step short; likely the rank ends by it, inside the step."""
        first_line = (str(error).splitlines() or [""])[0]
        self._left_by = f"; then {type(error).__name__}: {first_line}"
        self._changes += 1

    def note(self, doing: str) -> None:
        """What the rank does while no operation is at work."""
        self._operation = self._transfer = None
        self._doing = doing
        self._changes += 1

    def begin(self, operation: Operation) -> None:
        self._operation = operation
        self._position += 1
        self._changes += 1

    def end(self, operation: Operation) -> None:
        self._operation = None

    def begin_wait(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def end_wait(self, transfer: Transfer) -> None:
        self._transfer = None
        self._changes += 1
        if self._on_gpu:
            event = torch.cuda.Event()
            event.record()
            self._marks.append((event, transfer))

    @property
    def in_step(self) -> bool:
        """Whether a step runs, or work of it is left on the GPU."""
        return self.mid_step or bool(self._marks)

    def seconds_without_change(self) -> float:
        """For how long nothing went on, as far as calls of this method have seen."""
        now = time.monotonic()
        if self._changes != self._seen[0]:
            self._seen = (self._changes, now)
        if self._marks:
            self._let_go_of_passed()
        if not self._marks:
            return now - self._seen[1]
        event = self._marks[0][0]
        if event is not self._mark_seen[0]:
            self._mark_seen = (event, now)
        return now - self._mark_seen[1]

    def describe(self) -> str:
        """One line for people."""
        return self._describe_place() + self._left_by

    def _let_go_of_passed(self) -> None:
        # The asking thread's own device is 0: CUDA would set up a context there for every rank.
        with torch.cuda.device(self._device):
            while self._marks and self._marks[0][0].query():
                self._marks.popleft()

    def _describe_place(self) -> str:
        operation, transfer = self._operation, self._transfer
        if self._marks:
            return f"step {self.steps}: the GPU waits for the {self._marks[0][1]}"
        if operation is None:
            return f"step {self.steps}: {self._doing}"
        text = f"step {self.steps}, operation {self._position} of {self._length}: "
        if transfer is None:
            return text + _describe(operation)
        return f"{text}{_describe(operation)} waits for the {transfer}"


def _describe(operation: Operation) -> str:
    if isinstance(operation, Compute):
        return f"compute {operation.action}"
    if isinstance(operation, Announce):
        return f"announcing shapes to rank {operation.peer}"
    if isinstance(operation, Exchange):
        return f"posting transfers with rank {operation.peer}"
    if isinstance(operation, Free):
        return f"freeing what was sent to rank {operation.transfer.target}"
    if isinstance(operation, SyncGradients):
        return f"starting the gradient reduction of stage {operation.stage}"
    raise TypeError(f"unknown operation {operation!r}")

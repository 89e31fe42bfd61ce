"""Spans of computes and waits, on a clock that ticks with every mark."""

import time
from itertools import count

import torch

from hanayo_megatron.lowering.operation import Compute, Transfer
from hanayo_megatron.runtime.recorder import CudaClock, Recorder
from hanayo_megatron.schedule import Action, Kind

TRANSFER = Transfer(Kind.F, 4, 0, 1, 0, 1)


class Ticks:
    def __init__(self):
        self._next = count()

    def mark(self):
        return next(self._next)

    def seconds(self, mark):
        return float(mark)

    def finish(self):
        pass


def test_a_compute_counts_from_the_end_of_its_wait():
    recorder = Recorder(Ticks())
    compute = Compute(Action(1, Kind.F, 4))
    recorder.begin(compute)
    recorder.begin_wait(TRANSFER)
    recorder.end_wait(TRANSFER)
    recorder.end(compute)
    assert recorder.spans() == [(1, 2, "wait for 0F4 from rank 0"), (2, 3, "1F4")]


def test_on_a_gpu_times_are_those_of_events(monkeypatch):
    made = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing
            made.append(self)

        def record(self):
            self.milliseconds = 250.0 * (len(made) - 1)

        def elapsed_time(self, end):
            return end.milliseconds - self.milliseconds

    synchronised = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: synchronised.append(True))
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0)
    recorder = Recorder(CudaClock())
    synchronised.clear()
    compute = Compute(Action(1, Kind.B, 0))
    recorder.begin(compute)
    recorder.end(compute)
    assert not synchronised, "nothing waits for the GPU while the list runs"
    assert recorder.spans() == [(100.25, 100.5, "1B0")]
    assert synchronised

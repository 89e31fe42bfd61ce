"""What a rank says of itself, on a CPU and with stand-ins for a GPU's events."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from hanayo_megatron.lowering.operation import Compute, Exchange, Free, SyncGradients, Transfer
from hanayo_megatron.runtime.progress import Progress
from hanayo_megatron.schedule import Action, Kind

TRANSFER = Transfer(Kind.B, 2, 3, 2, 1, 0)


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (Compute(Action(2, Kind.B, 2)), "compute 2B2"),
        (Exchange(1, (), (TRANSFER,)), "posting transfers with rank 1"),
        (Free(TRANSFER), "freeing what was sent to rank 0"),
        (SyncGradients(2), "starting the gradient reduction of stage 2"),
    ],
)
def test_the_operation_at_work(operation, words):
    progress = Progress(on_gpu=False)
    progress.begin_step()
    progress.begin_list(7)
    progress.begin(operation)
    assert progress.describe() == f"step 1, operation 1 of 7: {words}"
    progress.end(operation)
    progress.end_step()
    assert progress.describe() == "step 1: behind the pipeline's part of the step"


def test_seconds_count_from_the_last_change():
    progress = Progress(on_gpu=False)
    progress.begin_step()
    progress.seconds_without_change()
    time.sleep(0.05)
    assert progress.seconds_without_change() >= 0.05
    progress.begin(Compute(Action(0, Kind.F, 0)))
    assert progress.seconds_without_change() < 0.05


def test_an_error_that_leaves_a_step_is_told_with_its_place():
    progress = Progress(on_gpu=False)
    progress.begin_step()
    progress.begin_list(7)
    progress.begin(Compute(Action(2, Kind.B, 2)))
    progress.leave_step(ValueError("no\nmore of it"))
    assert progress.mid_step
    assert progress.describe() == "step 1, operation 1 of 7: compute 2B2; then ValueError: no"
    progress.begin_step()
    progress.end_step()
    assert not progress.mid_step
    assert progress.describe() == "step 2: behind the pipeline's part of the step"


class FakeCuda:
    """Of four devices; every thread's current one is 0 until it says otherwise."""

    def __init__(self):
        self.local = threading.local()
        self.events = []

    def current_device(self):
        return getattr(self.local, "device", 0)

    @contextmanager
    def device(self, index):
        before = self.current_device()
        self.local.device = index
        yield
        self.local.device = before

    def make_event(self):
        self.events.append(FakeEvent(self))
        return self.events[-1]


class FakeEvent:
    """Passes when its test says so."""

    def __init__(self, cuda):
        self.cuda = cuda
        self.passed = False
        self.asked_on = set()

    def record(self):
        pass

    def query(self):
        self.asked_on.add(self.cuda.current_device())
        return self.passed


@pytest.fixture
def cuda(monkeypatch):
    cuda = FakeCuda()
    monkeypatch.setattr(torch.cuda, "Event", cuda.make_event)
    monkeypatch.setattr(torch.cuda, "current_device", cuda.current_device)
    monkeypatch.setattr(torch.cuda, "device", cuda.device)
    return cuda


def test_another_thread_asks_for_events_on_the_device_of_the_step(cuda):
    progress = Progress(on_gpu=True)
    with cuda.device(3):
        progress.begin_step()
        progress.end_wait(TRANSFER)
    with ThreadPoolExecutor(1) as watchdog:
        watchdog.submit(progress.seconds_without_change).result()
        assert watchdog.submit(cuda.current_device).result() == 0
    assert cuda.events[0].asked_on == {3}


def test_on_a_gpu_the_first_event_that_has_not_passed_counts(cuda):
    progress = Progress(on_gpu=True)
    progress.begin_step()
    for microbatch in (0, 1):
        progress.begin(Compute(Action(2, Kind.B, microbatch)))
        progress.begin_wait(TRANSFER._replace(microbatch=microbatch))
        progress.end_wait(TRANSFER._replace(microbatch=microbatch))
    progress.end_step()
    cuda.events[0].passed = True
    progress.seconds_without_change()
    time.sleep(0.03)
    assert progress.in_step, "the host is through, the GPU is not"
    assert progress.seconds_without_change() >= 0.03
    assert progress.describe() == (
        "step 1: the GPU waits for the gradient of microbatch 1 from stage 3 on rank 1 to stage 2 "
        "on rank 0"
    )
    cuda.events[1].passed = True
    progress.seconds_without_change()
    assert not progress.in_step

"""What a rank says of itself, on a CPU and with stand-ins for a GPU's events."""

import time

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


class FakeEvent:
    """Passes when its test says so."""

    made: list = []  # noqa: RUF012

    def __init__(self):
        self.passed = False
        self.made.append(self)

    def record(self):
        pass

    def query(self):
        return self.passed


def test_on_a_gpu_the_first_event_that_has_not_passed_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(FakeEvent, "made", [])
    progress = Progress(on_gpu=True)
    progress.begin_step()
    for microbatch in (0, 1):
        progress.begin(Compute(Action(2, Kind.B, microbatch)))
        progress.begin_wait(TRANSFER._replace(microbatch=microbatch))
        progress.end_wait(TRANSFER._replace(microbatch=microbatch))
    progress.end_step()
    FakeEvent.made[0].passed = True
    progress.seconds_without_change()
    time.sleep(0.03)
    assert progress.in_step, "the host is through, the GPU is not"
    assert progress.seconds_without_change() >= 0.03
    assert progress.describe() == (
        "step 1: the GPU waits for the gradient of microbatch 1 from stage 3 on rank 1 to stage 2 "
        "on rank 0"
    )
    FakeEvent.made[1].passed = True
    progress.seconds_without_change()
    assert not progress.in_step

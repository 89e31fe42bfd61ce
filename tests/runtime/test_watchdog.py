"""The watchdog's threads of several ranks on one store; leaving is recorded instead of done."""

import threading
import time
from dataclasses import replace

import pytest
import torch.distributed as dist

from hanayo_megatron.lowering.operation import Compute, Transfer
from hanayo_megatron.runtime import watchdog
from hanayo_megatron.runtime.notice_board import NoticeBoard
from hanayo_megatron.runtime.progress import Progress
from hanayo_megatron.runtime.watchdog import Patience, Watchdog
from hanayo_megatron.schedule import Action, Kind

PATIENCE = Patience(hang=1.5, silence=1.5, silence_in_alarm=0.5, end=0.5, interval=0.05)


class MuteBoard:
    """A board that nothing gets onto, as if the process were gone."""

    alarm, end = False, None

    def put(self, rank, notice):
        pass

    def read(self, rank):
        return None

    def end_job(self, reason):
        pass


class Rank:
    def __init__(self, store, rank, num_ranks):
        self.progress = Progress(on_gpu=False)
        self.left = threading.Event()
        self.watchdog = Watchdog(
            NoticeBoard(store),
            rank=rank,
            num_ranks=num_ranks,
            progress=self.progress,
            patience=PATIENCE,
            holds_store=rank == 0,
            leave=lambda code: self.left.set(),
        )


@pytest.fixture
def ranks():
    store = dist.HashStore()
    made = [Rank(store, rank, 3) for rank in range(3)]
    for rank in made:
        rank.watchdog.start()
    yield made
    for rank in made:
        rank.watchdog.stop()


def test_a_job_in_good_order_is_left_alone(ranks, capsys):
    for _ in range(30):
        for rank in ranks:
            rank.progress.begin_step()
            rank.progress.end_step()
        time.sleep(0.05)
    assert not any(rank.left.is_set() for rank in ranks)
    assert capsys.readouterr().err == ""


def test_long_times_between_steps_are_no_hang(ranks):
    for rank in ranks:
        rank.progress.begin_step()
        rank.progress.end_step()
    time.sleep(2.2)
    assert not any(rank.left.is_set() for rank in ranks)


def test_a_hang_ends_all_ranks_saying_what_each_does(ranks, capsys):
    transfer = Transfer(Kind.F, 3, 0, 1, 0, 1)
    for rank in ranks:
        rank.progress.begin_step()
        rank.progress.begin_list(9)
    ranks[0].progress.begin(Compute(Action(0, Kind.F, 3)))
    ranks[1].progress.begin(Compute(Action(1, Kind.F, 3)))
    ranks[1].progress.begin_wait(transfer)
    ranks[2].progress.end_step()
    assert all(rank.left.wait(10) for rank in ranks)
    text = capsys.readouterr().err
    assert "has been in one place for" in text
    assert "rank 0: step 1, operation 1 of 9: compute 0F3\n" in text
    assert (
        "rank 1: step 1, operation 1 of 9: compute 1F3 waits for the activation of microbatch 3 "
        "from stage 0 on rank 0 to stage 1 on rank 1\n"
    ) in text
    assert "rank 2: step 1: behind the pipeline's part of the step" in text


def test_a_silent_rank_is_named(ranks, capsys):
    for rank in ranks:
        rank.progress.begin_step()
        rank.progress.end_step()
    time.sleep(0.2)
    ranks[1].watchdog._board = MuteBoard()
    assert ranks[0].left.wait(10)
    assert ranks[2].left.wait(10)
    assert "rank 1 is gone: no sign of life" in capsys.readouterr().err


def test_a_silent_rank_that_can_be_seen_to_live_is_given_time(monkeypatch):
    """Native code that holds the interpreter keeps its watchdog from speaking."""
    monkeypatch.setitem(globals(), "PATIENCE", replace(PATIENCE, hang=20.0, silence=0.3))
    store = dist.HashStore()
    ranks = [Rank(store, rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.watchdog.start()
        rank.progress.begin_step()
        rank.progress.end_step()
    time.sleep(0.3)
    ranks[1].watchdog._board = MuteBoard()
    assert not ranks[0].left.wait(1.2)
    monkeypatch.setattr(watchdog, "is_alive", lambda process: False)
    assert ranks[0].left.wait(5)
    for rank in ranks:
        rank.watchdog.stop()


def test_a_failure_reaches_the_others(ranks, capsys):
    ranks[2].watchdog.fail("ValueError: no", lost_connection=False)
    assert ranks[0].left.wait(10)
    assert ranks[1].left.wait(10)
    assert "rank 2 failed: ValueError: no" in capsys.readouterr().err


def test_a_rank_that_ended_in_good_order_is_not_missed(ranks):
    ranks[1].watchdog.stop()
    time.sleep(2.2)
    assert not any(rank.left.is_set() for rank in ranks)

"""The watchdog's threads of several ranks on one store; leaving is recorded instead of done."""

import re
import threading
import time

import pytest
import torch.distributed as dist

from hanayo_megatron.lowering.operation import Compute, Transfer
from hanayo_megatron.runtime.lifeline import Address, Anchor
from hanayo_megatron.runtime.notice_board import NoticeBoard
from hanayo_megatron.runtime.patience import Patience
from hanayo_megatron.runtime.progress import Progress
from hanayo_megatron.runtime.watchdog import Watchdog
from hanayo_megatron.schedule import Action, Kind

PATIENCE = Patience(
    hang=1.5,
    silence=1.5,
    silence_in_alarm=0.5,
    stranded=0.5,
    asked=1.0,
    store=0.6,
    end=0.5,
    interval=0.05,
)


class MuteBoard:
    """A board that nothing gets onto, as if the process were gone, or could say nothing."""

    alarm, end = False, None

    def put(self, rank, notice):
        pass

    def read(self, rank):
        return None

    def end_job(self, reason):
        pass


class HungBoard(NoticeBoard):
    """Every request is held up for a while, as if the machine of the store were down."""

    def __init__(self, store):
        super().__init__(store)
        self.answers = threading.Event()

    def put(self, rank, notice):
        self.answers.wait()
        super().put(rank, notice)


class Rank:
    def __init__(self, store, rank, num_ranks, *, reachable):
        self.progress = Progress(on_gpu=False)
        self.left = threading.Event()
        self.anchor = Anchor("localhost")
        if not reachable:
            self.anchor.address = Address("255.255.255.255", 1)
        self.watchdog = Watchdog(
            NoticeBoard(store),
            self.anchor,
            rank=rank,
            num_ranks=num_ranks,
            progress=self.progress,
            patience=PATIENCE,
            holds_store=rank == 0,
            leave=lambda code: self.left.set(),
        )


def start(*, reachable):
    store = dist.HashStore()
    made = [Rank(store, rank, 3, reachable=reachable) for rank in range(3)]
    for rank in made:
        rank.watchdog.start()
    yield made
    for rank in reversed(made):  # the first one waits for the others
        rank.watchdog.stop()


@pytest.fixture
def ranks():
    yield from start(reachable=True)


@pytest.fixture
def unreachable_ranks():
    """As behind a firewall: no rank can connect to any other."""
    yield from start(reachable=False)


def one_step(ranks):
    for rank in ranks:
        rank.progress.begin_step()
        rank.progress.end_step()
    time.sleep(0.2)


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
    text = re.sub(r", \d+\.\d s ago", "", capsys.readouterr().err)
    assert "has been in one place for" in text
    assert "rank 0: step 1, operation 1 of 9: compute 0F3\n" in text
    assert (
        "rank 1: step 1, operation 1 of 9: compute 1F3 waits for the activation of microbatch 3 "
        "from stage 0 on rank 0 to stage 1 on rank 1\n"
    ) in text
    assert "rank 2: step 1: behind the pipeline's part of the step" in text


def test_a_rank_is_gone_as_soon_as_its_lifeline_is_cut(ranks, capsys):
    one_step(ranks)
    ranks[1].watchdog._board = MuteBoard()
    ranks[1].anchor.close()
    assert ranks[0].left.wait(PATIENCE.silence - 0.3)
    assert ranks[2].left.wait(PATIENCE.silence - 0.3)
    text = capsys.readouterr().err
    assert "rank 1 is gone (killed, crashed, or its machine is down)" in text
    assert "The last it said: step 1: behind the pipeline's part of the step.\n" in text


def test_a_silent_rank_that_no_lifeline_reaches_is_named(unreachable_ranks, capsys):
    ranks = unreachable_ranks
    one_step(ranks)
    ranks[1].watchdog._board = MuteBoard()
    assert not ranks[0].left.wait(PATIENCE.silence - 0.3)
    assert ranks[0].left.wait(10)
    assert ranks[2].left.wait(10)
    assert "rank 1 is gone: no sign of life" in capsys.readouterr().err


def test_a_rank_that_no_lifeline_reaches_is_told_of_once(unreachable_ranks, caplog):
    time.sleep(0.5)
    told = [r.getMessage() for r in caplog.records if "cannot connect" in r.getMessage()]
    assert sorted(text.partition(" at ")[0] for text in told) == [
        f"rank {rank} cannot connect to rank {(rank + 1) % 3}" for rank in range(3)
    ]


@pytest.mark.parametrize("mid_step", [True, False])
def test_a_silent_rank_that_lives_has_the_patience_of_a_hang_in_a_step(ranks, capsys, mid_step):
    """Native code that holds the interpreter keeps its watchdog from speaking."""
    one_step(ranks)
    if mid_step:
        ranks[1].progress.begin_step()
        time.sleep(0.2)
    ranks[1].watchdog._board = MuteBoard()
    ranks[0].watchdog._board.sound_alarm()
    assert not ranks[0].left.wait(PATIENCE.hang - 0.3)
    assert ranks[0].left.wait(5.0 if mid_step else 1.0) is mid_step
    text = capsys.readouterr().err
    assert ("rank 1 lives, but has not said anything for" in text) is mid_step


def test_a_store_that_does_not_answer_ends_the_rank(ranks, capsys):
    one_step(ranks)
    ranks[1].watchdog._board = board = HungBoard(dist.HashStore())
    assert not ranks[1].left.wait(PATIENCE.store - 0.2)
    assert ranks[1].left.wait(5)
    assert "rank 1: the store of torch.distributed has not answered" in capsys.readouterr().err
    board.answers.set()


def test_a_failure_reaches_the_others(ranks, capsys):
    ranks[2].watchdog.fail("ValueError: no", lost_connection=False)
    assert ranks[0].left.wait(10)
    assert ranks[1].left.wait(10)
    assert "rank 2 failed: ValueError: no" in capsys.readouterr().err


def test_a_failure_whose_text_is_not_utf_8_reaches_the_others(ranks, capsys):
    """As of a file whose name is not."""
    ranks[2].watchdog.fail("FileNotFoundError: '\udcff'", lost_connection=False)
    assert ranks[0].left.wait(10)
    assert ranks[1].left.wait(10)
    assert r"rank 2 failed: FileNotFoundError: '\udcff'" in capsys.readouterr().err


def test_a_rank_that_ended_in_good_order_is_not_missed(ranks):
    one_step(ranks)
    ranks[1].watchdog.stop()
    time.sleep(2.2)
    assert not any(rank.left.is_set() for rank in ranks)


def test_the_store_is_held_for_as_long_as_another_rank_is_at_work(ranks):
    one_step(ranks)
    ranks[1].watchdog.stop()
    ending = threading.Thread(target=ranks[0].watchdog.stop)
    ending.start()
    ending.join(PATIENCE.end + PATIENCE.store)
    assert ending.is_alive(), "rank 2 has not ended"
    assert not ranks[0].left.is_set()
    ranks[2].watchdog.stop()
    ending.join(PATIENCE.end)
    assert not ending.is_alive()


def test_the_store_is_not_held_for_a_rank_that_says_nothing_any_more(ranks):
    one_step(ranks)
    ranks[1].watchdog.stop()
    ranks[2].watchdog._board = MuteBoard()
    time.sleep(0.2)
    started = time.monotonic()
    ranks[0].watchdog.stop()
    assert PATIENCE.end - 0.1 < time.monotonic() - started < PATIENCE.end + 0.5


def test_a_rank_that_is_slow_at_its_last_step_is_not_stranded(ranks):
    """The others have begun as many steps and ended, one after the other."""
    for rank in ranks:
        rank.progress.begin_step()
    for rank in ranks[1:]:
        rank.progress.end_step()
        rank.watchdog.stop()
    time.sleep(PATIENCE.stranded + 0.5)
    ranks[0].progress.end_step()
    assert not ranks[0].left.wait(0.5)


def test_a_rank_that_ends_in_a_step_ends_the_others(ranks, capsys):
    """Also those that have done their part of the step and wait outside it."""
    for rank in ranks:
        rank.progress.begin_step()
    for rank in (ranks[0], ranks[2]):
        rank.progress.end_step()
    ranks[1].progress.leave_step(SystemExit(1))
    ranks[1].watchdog.stop()
    assert not ranks[0].left.wait(PATIENCE.stranded - 0.2), "it may run into the same error"
    assert ranks[0].left.wait(5)
    assert ranks[2].left.wait(5)
    assert (
        "rank 1 has ended by itself (its exit code is not known here) in the middle of step 1: "
        "starting; then SystemExit: 1.\n"
    ) in capsys.readouterr().err


def test_a_rank_that_ends_before_a_step_of_the_others_ends_them(ranks, capsys):
    one_step(ranks)
    ranks[1].watchdog.stop()
    for rank in (ranks[0], ranks[2]):
        rank.progress.begin_step()
    assert not ranks[0].left.wait(PATIENCE.stranded - 0.2)
    assert ranks[0].left.wait(5)
    assert ranks[2].left.wait(5)
    assert (
        "rank 1 has ended by itself (its exit code is not known here) before step 2; rank 0 waits "
        "in step 2: starting.\n"
    ) in capsys.readouterr().err


def test_a_rank_that_ends_between_steps_is_named_when_another_one_loses_a_connection(ranks, capsys):
    one_step(ranks)
    ranks[1].watchdog.stop()
    time.sleep(0.2)
    ranks[2].watchdog.fail("RuntimeError: gloo: closed by peer", lost_connection=True)
    assert ranks[0].left.wait(5)
    assert ranks[2].left.wait(5)
    assert (
        "rank 1 has ended by itself (its exit code is not known here) after step 1: behind the "
        "pipeline's part of the step; a rank that goes on has lost a connection.\n"
    ) in capsys.readouterr().err


def test_a_rank_that_gets_on_is_not_stranded_by_one_that_ended_early(ranks):
    one_step(ranks)
    ranks[1].watchdog.stop()
    for rank in (ranks[0], ranks[2]):
        rank.progress.begin_step()
    for _ in range(15):
        ranks[0].progress.note("more")
        ranks[2].progress.note("more")
        time.sleep(0.1)
    assert not any(rank.left.is_set() for rank in ranks)


def test_a_rank_that_is_told_to_end_does_so_when_nothing_is_found(ranks, capsys):
    ranks[1].progress.begin_step()
    ranks[1].watchdog.ask_to_end()
    assert ranks[1].left.wait(5)
    assert (
        "job ended on rank 1: SIGTERM, from the launcher or a person, and no rank is known to have "
        "failed; in step 1: starting\n"
    ) in capsys.readouterr().err
    assert not ranks[0].left.is_set()


def test_and_with_the_reason_where_there_is_one(ranks, capsys):
    for rank in ranks[:2]:
        rank.watchdog.ask_to_end()
    ranks[2].anchor.close()
    ranks[2].watchdog._board = MuteBoard()
    assert all(rank.left.wait(5) for rank in ranks[:2])
    text = capsys.readouterr().err
    assert all(f"job ended on rank {rank}: rank 2 is gone" in text for rank in range(2))
    assert "SIGTERM" not in text

"""Greedy blocks, their repetition, and drafts that ranks may run ahead of."""

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_measure import measure, stage_times

from hanayo_megatron.schedule.action import Action
from hanayo_megatron.schedule.block import Cut, block_sizes, most_live, repeat, tightest_period
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.greedy import greedy_block
from hanayo_megatron.schedule.placement import bidirectional, linear, wave
from hanayo_megatron.schedule.schedule import Schedule
from hanayo_megatron.schedule.verify import find_faults
from hanayo_megatron.schedule.work_ahead import Ahead, work_ahead


def cells(text):
    return [Action.parse(cell) for cell in text.split()]


def run(draft, placement, microbatches, *, ahead, max_live=100, **costs):
    found = work_ahead(
        draft,
        placement,
        num_microbatches=microbatches,
        costs=Costs(**costs),
        max_live=max_live,
        ahead=ahead,
    )
    return found and [" ".join(map(str, order)) for order in found.orders]


# Rank 0 asks for 0B0 at once, which only comes when rank 1 is done.
EARLY = [cells("0F0 0B0 0F1 0B1"), cells("1F0 1B0 1F1 1B1")]


@pytest.mark.parametrize(
    ("ahead", "order"),
    [
        (Ahead.NOTHING, "0F0 0B0 0F1 0B1"),
        (Ahead.BACKWARDS, "0F0 0B0 0F1 0B1"),
        (Ahead.EVERYTHING, "0F0 0F1 0B0 0B1"),
    ],
)
def test_a_forward_overtakes_only_if_allowed(ahead, order):
    assert run(EARLY, linear(2), 2, ahead=ahead)[0] == order


def test_a_forward_does_not_overtake_without_memory():
    assert run(EARLY, linear(2), 2, ahead=Ahead.EVERYTHING, max_live=1)[0] == "0F0 0B0 0F1 0B1"


def test_a_backward_overtakes_a_forward_that_is_not_ready():
    draft = [cells("0F0 0F1 0B0 0B1"), cells("1F0 1F1 1B0 1B1")]
    slow = {"stage_times": {(cell.kind, 0): 5.0 for cell in cells("0F0")}}
    assert run(draft, linear(2), 2, ahead=Ahead.NOTHING, **slow)[1] == "1F0 1F1 1B0 1B1"
    assert run(draft, linear(2), 2, ahead=Ahead.BACKWARDS, **slow)[1] == "1F0 1B0 1F1 1B1"


def test_weight_gradients_fill_waits_and_free_memory():
    draft = [cells("0F0 0I0 0F1 0I1"), cells("1F0 1I0 1F1 1I1")]
    assert run(draft, linear(2), 2, ahead=Ahead.NOTHING) == [
        "0F0 0I0 0F1 0W0 0I1 0W1",
        "1F0 1I0 1W0 1F1 1I1 1W1",
    ]
    assert run(draft, linear(2), 2, ahead=Ahead.NOTHING, max_live=1)[0] == "0F0 0I0 0W0 0F1 0I1 0W1"


def test_a_draft_that_waits_for_itself():
    draft = [cells("0F0 0B0 0F1 0B1"), cells("1F1 1B1 1F0 1B0")]
    assert run(draft, linear(2), 2, ahead=Ahead.NOTHING) is None
    assert run(draft, linear(2), 2, ahead=Ahead.EVERYTHING) is not None


@pytest.mark.parametrize(
    ("cut", "sizes"),
    [
        (Cut.EVEN, [4, 4, 3]),
        (Cut.REMAINDER_FIRST, [3, 4, 4]),
        (Cut.REMAINDER_LAST, [4, 4, 3]),
    ],
)
def test_microbatches_are_cut_into_blocks(cut, sizes):
    block = greedy_block(linear(2), microbatches=4, costs=Costs())
    assert block_sizes(block, 11, cut) == sizes


def test_only_the_last_block_treats_replicas_unequally():
    block = greedy_block(bidirectional(4), microbatches=4, costs=Costs())
    for microbatches in range(1, 30):
        for cut in Cut:
            sizes = block_sizes(block, microbatches, cut)
            assert sum(sizes) == microbatches
            assert all(0 < size <= 4 for size in sizes)
            assert all(size % 2 == 0 for size in sizes[:-1])


@settings(max_examples=60, deadline=None)
@given(
    pp=st.integers(1, 6),
    waves=st.integers(1, 3),
    size=st.integers(1, 6),
    microbatches=st.integers(1, 15),
    spare=st.integers(0, 4),
    split=st.booleans(),
    ahead=st.sampled_from(Ahead),
    cut=st.sampled_from(Cut),
)
def test_tightly_repeated_blocks_are_legal_and_fit(
    pp, waves, size, microbatches, spare, split, ahead, cut
):
    placement = wave(pp, waves)
    max_live = 2 * waves * size + spare
    block = greedy_block(placement, microbatches=size, costs=Costs(), split_backward=split)
    period = tightest_period(block, max_live)
    draft = repeat(block, microbatches, period=period, cut=cut)
    assert most_live(draft) <= max_live
    found = work_ahead(
        draft,
        placement,
        num_microbatches=microbatches,
        costs=Costs(),
        max_live=max_live,
        ahead=ahead,
    )
    schedule = Schedule("repeated", placement, microbatches, found.orders)
    assert find_faults(schedule, memory_limit=max_live / (2 * waves)) == []
    times = stage_times(*[1 / (2 * waves)] * 3)
    makespan = Costs().ticks(placement).time(found.makespan)
    assert measure(schedule, times).makespan == pytest.approx(makespan)


def test_tighter_than_the_tightest_does_not_fit():
    block = greedy_block(wave(4, 1), microbatches=4, costs=Costs())
    period = tightest_period(block, 8)
    assert most_live(repeat(block, 40, period=period)) <= 8
    assert most_live(repeat(block, 40, period=period * 95 // 100)) > 8
    assert tightest_period(block, 7) is None


def test_every_process_builds_the_same_schedules():
    """Ranks build their schedules apart; random hashes must not matter."""
    code = """
from hanayo_megatron.schedule import ScheduleSpec, build_schedule, schedule_names
for name in schedule_names():
    print(name, *build_schedule(name, ScheduleSpec(pp=4, microbatches=11, waves=2)).orders)
"""
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1
    assert len(texts.pop().splitlines()) == 15

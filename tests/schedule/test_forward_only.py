"""Evaluation schedules: complete, runnable and as fast as the pipeline can be."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanayo_megatron.lowering.plan import plan_times
from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.forward_only import forward_only_schedule
from hanayo_megatron.schedule.placement import Placement, bidirectional, linear, looped, wave
from hanayo_megatron.schedule.schedule import ScheduleError


def makespan(schedule, costs=None):
    costs = costs or Costs()
    plan = plan_times(schedule, costs)
    ends = [end for rank in plan.ends for end in rank]
    return costs.ticks(schedule.placement).time(max(ends))


def assert_complete(schedule):
    placement = schedule.placement
    cells = [a for order in schedule.orders for a in order]
    assert len(cells) == len(set(cells)) == placement.model_stages * schedule.num_microbatches
    assert all(a.kind is Kind.F for a in cells)
    for rank, order in enumerate(schedule.orders):
        assert all(placement.rank_of[a.stage] == rank for a in order)
    replica_of = {}
    for a in cells:
        assert replica_of.setdefault(a.microbatch, placement.replica_of(a.stage)) == (
            placement.replica_of(a.stage)
        )
    assert len(replica_of) == schedule.num_microbatches
    plan_times(schedule, Costs())


@pytest.mark.parametrize(
    ("num_ranks", "microbatches"), list(product([1, 2, 4, 7], [1, 2, 3, 8, 33]))
)
def test_linear_takes_m_plus_p_minus_1_forwards(num_ranks, microbatches):
    schedule = forward_only_schedule(linear(num_ranks), microbatches)
    assert_complete(schedule)
    assert makespan(schedule) == pytest.approx(microbatches + num_ranks - 1)


@pytest.mark.parametrize(
    ("num_ranks", "waves", "microbatches"),
    list(product([1, 2, 4, 8], [1, 2, 4], [1, 2, 5, 16, 64])),
)
def test_waves_fill_the_ranks(num_ranks, waves, microbatches):
    schedule = forward_only_schedule(wave(num_ranks, waves), microbatches)
    assert_complete(schedule)
    stage_time = 1 / (2 * waves)
    # Filled within one pass of a microbatch through all stages, counted as a whole at worst.
    assert makespan(schedule) <= microbatches + num_ranks + (num_ranks - 1) * stage_time + 1e-6


@pytest.mark.parametrize(("num_ranks", "microbatches"), list(product([2, 4, 8], [1, 2, 3, 8, 33])))
def test_two_replicas_share_the_microbatches(num_ranks, microbatches):
    schedule = forward_only_schedule(bidirectional(num_ranks), microbatches)
    assert_complete(schedule)
    assert [len(s) for s in schedule.microbatches_of_replica] == [
        (microbatches + 1) // 2,
        microbatches // 2,
    ]
    assert makespan(schedule) <= microbatches + num_ranks


def test_the_replicas_read_what_they_are_told():
    shares = [(1, 2, 4), (0, 3)]
    schedule = forward_only_schedule(bidirectional(4), 5, microbatches_of_replica=shares)
    assert_complete(schedule)
    assert schedule.microbatches_of_replica == ((1, 2, 4), (0, 3))


@pytest.mark.parametrize(
    ("shares", "what"),
    [
        ([[0, 1, 2]], "for 1 replicas; the placement has 2"),
        ([[0, 1], [1, 2]], r"together they must read each of 0\.\.2 once"),
        ([[0], [2]], r"together they must read each of 0\.\.2 once"),
    ],
)
def test_wrong_shares_are_refused(shares, what):
    with pytest.raises(ScheduleError, match=what):
        forward_only_schedule(bidirectional(2), 3, microbatches_of_replica=shares)


def test_no_microbatch_is_refused():
    with pytest.raises(ScheduleError, match="at least one microbatch, got 0"):
        forward_only_schedule(linear(2), 0)


def test_a_slow_rank_does_not_pile_up_input():
    costs = Costs(stage_times={(Kind.F, 3): 10.0})
    schedule = forward_only_schedule(wave(4, 1), 64, costs=costs)
    assert_complete(schedule)
    in_flight = peak = 0
    for action in schedule.orders[0]:
        in_flight += 1 if action.stage == 0 else -1
        peak = max(peak, in_flight)
    assert peak == 2 * 4


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    num_ranks=st.integers(1, 6),
    num_stages=st.integers(1, 12),
    microbatches=st.integers(1, 20),
    transfer=st.sampled_from([0.0, 0.3]),
)
def test_any_placement(data, num_ranks, num_stages, microbatches, transfer):
    ranks = st.integers(0, num_ranks - 1)
    rank_of = data.draw(st.lists(ranks, min_size=num_stages, max_size=num_stages))
    placement = Placement(num_ranks, tuple(rank_of))
    schedule = forward_only_schedule(placement, microbatches, costs=Costs(transfer=transfer))
    assert_complete(schedule)


def test_looped():
    schedule = forward_only_schedule(looped(4, 3), 10)
    assert_complete(schedule)

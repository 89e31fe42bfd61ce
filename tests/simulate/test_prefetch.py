"""Receives are ahead of their use as far as it saves time, with as few buffers as that takes."""

import pytest

from hanayo_megatron.lowering.lower import lower
from hanayo_megatron.lowering.plan import plan_times
from hanayo_megatron.schedule import Costs, ScheduleError, ScheduleSpec, build_schedule
from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.registry import schedule_names
from hanayo_megatron.simulate.prefetch import lower_with_least_buffers
from hanayo_megatron.simulate.simulate import simulate
from hanayo_megatron.simulate.transfer_buffers import peak_buffers

SIZES = [(2, 1, 4), (4, 1, 8), (4, 2, 8), (8, 2, 16), (8, 3, 17)]


def library(name):
    for pp, waves, microbatches in SIZES:
        spec = ScheduleSpec(pp=pp, microbatches=microbatches, waves=waves, chunks=waves)
        try:
            yield build_schedule(name, spec)
        except ScheduleError:
            continue


def slow(schedule, transfer=0.25):
    """Transfers that take this part of the shortest forward."""
    forward = min(Costs().durations(schedule.placement)[Kind.F])
    return Costs(transfer=transfer * forward)


@pytest.mark.parametrize("name", schedule_names())
def test_the_least_buffers_cost_no_time_on_slow_links_and_one_less_would(name):
    for schedule in library(name):
        costs = slow(schedule)
        unlimited = simulate(lower(schedule), costs)
        chosen = lower_with_least_buffers(schedule)
        assert simulate(chosen, costs).makespan <= unlimited.makespan * 1.001
        most = max(peak_buffers(chosen).receive)
        assert most <= max(unlimited.peak_receive_buffers)
        for fewer in range(2, most):
            one_less = simulate(lower(schedule, receive_buffers=fewer), costs)
            assert one_less.makespan > unlimited.makespan * 1.001


@pytest.mark.parametrize("transfer", [0, 0.02, 0.1])
@pytest.mark.parametrize("name", schedule_names())
def test_nor_do_they_on_faster_links(name, transfer):
    for schedule in library(name):
        costs = slow(schedule, transfer)
        chosen = simulate(lower_with_least_buffers(schedule), costs)
        assert chosen.makespan <= simulate(lower(schedule), costs).makespan * 1.001


@pytest.mark.parametrize("transfer", [0.02, 0.1])
@pytest.mark.parametrize("name", schedule_names())
def test_rendezvous_and_order_of_transfers_cost_nothing(name, transfer):
    """The step takes as long as if only dependencies and busy ranks held computes up, to 0.3 %."""
    for schedule in library(name):
        costs = slow(schedule, transfer)
        plan = plan_times(schedule, costs)
        unit = costs.ticks(schedule.placement).unit
        bound = max(ends[-1] for ends in plan.ends) * float(unit)
        found = simulate(lower_with_least_buffers(schedule), costs).makespan
        assert bound * (1 - 1e-9) <= found <= bound * 1.003


def test_figures_of_the_library():
    """As few as are enough; without a limit a rank takes all that comes early."""
    cases = {"hanayo": (5, 2), "chimera": (4, 2), "breadth-first": (9, 2), "1f1b": (2, 2)}
    for name, (without, chosen) in cases.items():
        schedule = build_schedule(name, ScheduleSpec(pp=8, microbatches=16, waves=2, chunks=2))
        assert max(peak_buffers(lower(schedule)).receive) == without
        assert max(peak_buffers(lower_with_least_buffers(schedule)).receive) == chosen


def test_few_ranks_with_many_microbatches_on_slow_links():
    schedule = build_schedule("hanayo", ScheduleSpec(pp=2, microbatches=32, waves=2))
    costs = Costs(forward=1, backward=2, transfer=0.5)
    unlimited = simulate(lower(schedule, costs), costs).makespan
    chosen = simulate(lower_with_least_buffers(schedule, costs), costs).makespan
    assert chosen <= unlimited * 1.001


def test_measured_links_are_tried_slow_as_well():
    schedule = build_schedule("interleaved", ScheduleSpec(pp=6, microbatches=17, chunks=2))
    links = {(a, b): 0.001 for a in range(6) for b in range(6) if a != b}
    for costs in (Costs(), Costs(link_times=links)):
        assert max(peak_buffers(lower_with_least_buffers(schedule, costs)).receive) == 3


def test_what_finds_no_buffer_waits_at_its_sender():
    """Every tensor is held by one side or the other; only the transfer itself needs both."""
    schedule = build_schedule("breadth-first", ScheduleSpec(pp=8, microbatches=16, chunks=2))
    without, chosen = lower(schedule), lower_with_least_buffers(schedule)
    assert (max(peak_buffers(without).receive), max(peak_buffers(without).send)) == (9, 2)
    assert (max(peak_buffers(chosen).receive), max(peak_buffers(chosen).send)) == (2, 8)


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (4, 8), (8, 32)])
def test_plans_with_free_transfers_hide_those_that_are_not(pp, microbatches):
    """GPipe's transfers are hidden behind computes but for the first and last on each link."""
    schedule = build_schedule("gpipe", ScheduleSpec(pp=pp, microbatches=microbatches))
    real = Costs(forward=1, backward=2, transfer=0.25)
    expected = 3 * (microbatches + pp - 1) + 2 * (pp - 1) * 0.25
    assert simulate(lower_with_least_buffers(schedule), real).makespan == pytest.approx(expected)


def test_a_limit_below_one_is_refused():
    schedule = build_schedule("1f1b", ScheduleSpec(pp=2, microbatches=2))
    with pytest.raises(ValueError, match="at least 1 receive buffer, got 0"):
        lower(schedule, receive_buffers=0)

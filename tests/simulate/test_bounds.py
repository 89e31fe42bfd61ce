"""Bounds against the best of all orders."""

from itertools import pairwise, permutations, product

import pytest

from hanayo_megatron.lowering.lower import lower
from hanayo_megatron.lowering.plan import plan_times
from hanayo_megatron.schedule import Action, Costs, Kind, Schedule, ScheduleError, ScheduleSpec
from hanayo_megatron.schedule.placement import linear, wave
from hanayo_megatron.schedule.registry import build_schedule
from hanayo_megatron.simulate.bounds import makespan_bound
from hanayo_megatron.simulate.simulate import simulate


def best_makespan(placement, num_microbatches, kinds, costs):
    """Shortest plan over all orders of all ranks."""
    ticks = costs.ticks(placement)
    choices = [
        [
            order
            for order in permutations(
                Action(s, k, m) for s in stages for k in kinds for m in range(num_microbatches)
            )
            if runs_alone(order)
        ]
        for stages in placement.stages_of
    ]
    best = None
    for orders in product(*choices):
        schedule = Schedule("any", placement, num_microbatches, orders)
        try:
            plan = plan_times(schedule, costs)
        except ScheduleError:
            continue
        makespan = max(ends[-1] for ends in plan.ends)
        best = makespan if best is None else min(best, makespan)
    return ticks.time(best), schedule


def runs_alone(order):
    """Forward, input gradient and weight gradient of each cell in this order."""
    place = {action: n for n, action in enumerate(order)}
    rank_of_kind = {Kind.F: 0, Kind.B: 1, Kind.I: 1, Kind.W: 2}
    ordered = sorted(order, key=lambda a: (a.stage, a.microbatch, rank_of_kind[a.kind]))
    return all(
        place[a] < place[b]
        for a, b in pairwise(ordered)
        if (a.stage, a.microbatch) == (b.stage, b.microbatch)
    )


@pytest.mark.parametrize(
    ("placement", "num_microbatches", "kinds", "costs", "is_reached"),
    [
        (linear(2), 1, "FB", Costs(transfer=0.5), True),
        (linear(2), 2, "FB", Costs(), True),
        (linear(2), 2, "FB", Costs(transfer=0.5), True),
        (linear(3), 1, "FB", Costs(forward=3, backward=1), True),
        (linear(2), 2, "FIW", Costs(), True),
        (wave(2, 1), 1, "FB", Costs(transfer=0.25), True),
        (wave(2, 1), 1, "FIW", Costs(weight=3), False),
    ],
)
def test_no_order_beats_the_bound(placement, num_microbatches, kinds, costs, is_reached):
    best, schedule = best_makespan(placement, num_microbatches, list(map(Kind, kinds)), costs)
    bound = makespan_bound(schedule, costs).makespan
    assert bound <= best
    assert (bound == best) is is_reached


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_a_linear_pipeline_reaches_its_bound(name):
    for ranks, microbatches in product(range(1, 6), range(1, 8)):
        schedule = build_schedule(name, ScheduleSpec(pp=ranks, microbatches=microbatches))
        bound = makespan_bound(schedule, Costs())
        assert (
            simulate(lower(schedule)).makespan == bound.makespan == 3 * (microbatches + ranks - 1)
        )


def test_waves_have_shorter_fills():
    """Work plus (P-1)/2W of T_F and of T_B (architecture.md has the split case)."""
    for waves in (1, 2, 4):
        schedule = build_schedule("hanayo", ScheduleSpec(pp=8, microbatches=8, waves=waves))
        assert makespan_bound(schedule, Costs()).busiest_rank == 24 + 7 * 3 / (2 * waves)


def test_hanayo_zb_reaches_its_bound():
    for waves in (1, 2):
        schedule = build_schedule("hanayo-zb", ScheduleSpec(pp=4, microbatches=8, waves=waves))
        bound = makespan_bound(schedule, Costs()).makespan
        assert simulate(lower(schedule)).makespan == bound == 24 + 3 / (2 * waves)


def test_evaluation_counts_forwards_only():
    orders = tuple(tuple(Action(s, Kind.F, m) for m in range(3)) for s in range(4))
    bound = makespan_bound(Schedule("evaluation", linear(4), 3, orders), Costs(transfer=1))
    assert bound.one_microbatch == 4 + 3
    assert bound.busiest_rank == 3 + 3 + 3

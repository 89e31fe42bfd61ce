"""Formulas of the library's schedules against the exact simulation."""

from itertools import product

import pytest

from hanayo_megatron.schedule import Costs, Kind, ScheduleError, ScheduleSpec
from hanayo_megatron.schedule.registry import schedule_names
from hanayo_megatron.simulate.closed_form import closed_form
from hanayo_megatron.simulate.report import report_by_name

EQUAL = Costs()
TIMES = (EQUAL, Costs(input=1.5, weight=0.5), Costs(forward=2), Costs(forward=2, input=2))


@pytest.mark.parametrize("name", sorted(set(schedule_names()) - {"hanayo", "v-half", "v-min"}))
def test_exact_formulas_equal_the_simulation(name):
    exact = 0
    for pp, m, n, costs in product((1, 2, 4), (1, 4, 5, 8, 12), (1, 2), TIMES):
        spec = ScheduleSpec(pp=pp, microbatches=m, waves=n, chunks=n, costs=costs)
        try:
            simulation = report_by_name(name, spec).simulation
        except ScheduleError:
            continue
        form = closed_form(name, spec)
        assert set(simulation.weight_memory) == {form.weights}
        if form.bubble_ratio is None or not form.is_exact:
            continue
        exact += 1
        case = (pp, m, n, costs)
        assert simulation.bubble_ratio == pytest.approx(form.bubble_ratio, abs=1e-12), case
        if form.own_span_bubble_ratio is not None:
            own_span = simulation.own_span_bubble_ratio
            assert own_span == pytest.approx(form.own_span_bubble_ratio, abs=1e-12), case
        if form.activations is not None:
            peaks = simulation.peak_activations
            assert (min(peaks), max(peaks)) == pytest.approx(form.activations), case
    assert exact >= 8


@pytest.mark.parametrize(("name", "least", "most"), [("v-half", 3, 5), ("v-min", 2, 4)])
def test_controllable_memory(name, least, most):
    """At most the bubbles given, and not far below; exactly the published memory."""
    for pp, memory in ((4, least), (8, most)):
        for m in (2 * pp, 3 * pp):
            spec = ScheduleSpec(pp=pp, microbatches=m)
            form = closed_form(name, spec)
            simulation = report_by_name(name, spec).simulation
            assert max(simulation.peak_activations) == memory == form.activations[1]
            assert 0 <= form.bubble_ratio - simulation.bubble_ratio + 1e-12 <= 0.03


def test_formulas_are_only_for_what_they_hold_for():
    spec = ScheduleSpec(pp=4, microbatches=8)
    assert closed_form("hanayo", spec).bubble_ratio is None
    assert closed_form("chimera", ScheduleSpec(pp=4, microbatches=6)).bubble_ratio is None
    uneven = Costs(stage_times={(Kind.F, 0): 2})
    assert closed_form("1f1b", ScheduleSpec(pp=4, microbatches=8, costs=uneven)) is None
    slow = Costs(link_times={(0, 1): 1})
    assert closed_form("1f1b", ScheduleSpec(pp=4, microbatches=8, costs=slow)) is None
    assert closed_form("zb-v", ScheduleSpec(pp=4, microbatches=8, memory_limit=2)) is None
    transfers = ScheduleSpec(pp=4, microbatches=8, costs=Costs(transfer=0.1))
    assert closed_form("1f1b", transfers).bubble_ratio is None
    assert closed_form("file.csv", spec) is None


def test_aliases_have_the_formula_of_their_schedule():
    spec = ScheduleSpec(pp=4, microbatches=8)
    assert closed_form("dapple", spec) == closed_form("1f1b", spec)
    assert closed_form("circular", spec) == closed_form("interleaved", spec)


def test_every_schedule_of_the_library_has_one():
    spec = ScheduleSpec(pp=4, microbatches=8)
    assert all(closed_form(name, spec) is not None for name in schedule_names())

"""Measured steps as timelines, and the plan drawn beside them."""

import pytest

from hanayo_megatron.lowering.lower import lower
from hanayo_megatron.schedule import Costs, Kind, ScheduleSpec, build_schedule
from hanayo_megatron.simulate.simulate import simulate
from hanayo_megatron.timeline.event import load_timeline, simulated_timeline
from hanayo_megatron.timeline.measured import (
    measured_costs,
    measured_timeline,
    planned_timeline,
    save_measured,
)

TIMES = {(Kind.F, s): 0.25 + 0.125 * s for s in range(4)} | {
    (Kind.B, s): 0.5 + 0.25 * s for s in range(4)
}


@pytest.fixture
def lowered():
    return lower(build_schedule("hanayo", ScheduleSpec(pp=2, microbatches=3)))


@pytest.fixture
def measured(lowered):
    """A step that ran just as the simulator has it, 7 seconds after the clocks had started."""
    events = simulated_timeline(simulate(lowered, Costs(stage_times=TIMES))).events
    spans = [
        [(e.start + 7, e.end + 7, e.what) for e in events if e.rank == rank] for rank in range(2)
    ]
    return measured_timeline(lowered, spans, title="step 1 as measured")


def test_a_timeline_starts_at_nought(measured):
    assert min(event.start for event in measured.events) == 0
    assert measured.unit == "s"


def test_costs_are_the_median_times_of_stages(lowered):
    spans = [[(0, 1, "0F0"), (1, 3, "0F1"), (3, 12, "0F2"), (12, 13, "wait for 1B0 from rank 1")]]
    costs = measured_costs(measured_timeline(lowered, spans, title=""))
    assert costs.stage_times == {(Kind.F, 0): 2}


def test_the_plan_with_measured_times_is_the_step_where_nothing_disturbed_it(lowered, measured):
    planned = planned_timeline(lowered, measured)
    assert planned.unit == measured.unit
    ours, theirs = sorted(planned.events), sorted(measured.events)
    assert [(e.rank, e.what) for e in ours] == [(e.rank, e.what) for e in theirs]
    assert [e.start for e in ours] == pytest.approx([e.start for e in theirs])
    assert [e.end for e in ours] == pytest.approx([e.end for e in theirs])


def test_files(lowered, measured, tmp_path):
    save_measured(lowered, measured, tmp_path / "step1-pipeline0")
    assert load_timeline(tmp_path / "step1-pipeline0.json") == measured
    assert "step 1 as measured" in (tmp_path / "step1-pipeline0.svg").read_text()
    assert (tmp_path / "step1-pipeline0.trace.json").exists()

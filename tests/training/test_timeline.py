"""Timelines of real steps."""

import json
from itertools import pairwise

import pytest

from hanayo_megatron.lowering.lower import lower
from hanayo_megatron.lowering.operation import Exchange
from hanayo_megatron.schedule import ScheduleSpec, build_schedule
from hanayo_megatron.timeline.event import load_timeline
from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron


def test_chosen_steps_are_measured_and_drawn_beside_the_plan(launcher, tmp_path):
    folder = tmp_path / "timelines"
    arguments = tiny_gpt(
        *("--pipeline-model-parallel-size", "2", "--pipeline-schedule", "hanayo"),
        *("--pipeline-timeline", str(folder), "--pipeline-timeline-steps", "2-3"),
        *("--eval-interval", "1", "--eval-iters", "1"),
        microbatches=8,
        iterations=4,
    )
    launcher.run(arguments, ranks=4).check()

    steps, pipelines = (2, 3), (0, 1)
    endings = ("json", "svg", "trace.json")
    expected = {f"step{s}-rank{r}.json" for s in steps for r in range(4)}
    expected |= {f"step{s}-pipeline{p}.{e}" for s in steps for p in pipelines for e in endings}
    assert {path.name for path in folder.iterdir()} == expected

    schedule = build_schedule("hanayo", ScheduleSpec(pp=2, microbatches=4))
    measured = load_timeline(folder / "step3-pipeline0.json")
    assert measured.unit == "s"
    assert measured.placement == schedule.placement
    ends = {}
    for rank, order in enumerate(schedule.orders):
        computes = sorted(e for e in measured.events if e.rank == rank and e.action)
        assert [e.action for e in computes] == list(order)
        assert all(e.start < e.end for e in computes)
        assert all(a.end <= b.start for a, b in pairwise(computes))
        ends |= {e.action: (e.start, e.end) for e in computes}
    for (stage, kind, microbatch), (start, _) in ends.items():
        if kind == "F" and stage:
            # Clocks of ranks agree to half the time of a quick round trip.
            assert start > ends[stage - 1, kind, microbatch][1] - 0.0005
    waits = [e.what for e in measured.events if e.action is None]
    transfers = [
        t for o in lower(schedule).programs[0] if isinstance(o, Exchange) for t in o.receives
    ]
    assert len([w for w in waits if "from rank 1" in w]) >= len(transfers)

    trace = json.loads((folder / "step3-pipeline0.trace.json").read_text())["traceEvents"]
    titles = [e["args"]["name"] for e in trace if e["name"] == "process_name"]
    assert titles[0].startswith("hanayo, simulated with the measured times")
    assert titles[1] == "hanayo, step 3 as measured"
    assert "step 3 as measured" in (folder / "step3-pipeline0.svg").read_text()


def test_steps_that_the_run_does_not_reach_are_told(launcher, tmp_path):
    arguments = tiny_gpt(
        *("--pipeline-model-parallel-size", "2", "--pipeline-schedule", "hanayo"),
        *("--pipeline-timeline", str(tmp_path), "--pipeline-timeline-steps", "20-30"),
        iterations=2,
    )
    run = launcher.run(arguments, ranks=2).check()
    told = "no step was measured: the run had 2, to be measured were 20 to 30"
    assert [told in out + err for out, err in zip(run.stdout, run.stderr, strict=True)] == [
        True,
        False,
    ]

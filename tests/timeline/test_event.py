"""One format for simulated and measured timelines; traces for Perfetto."""

import json
from itertools import pairwise

import pytest

from hanayo_megatron.lowering.lower import lower
from hanayo_megatron.schedule import Action, Costs, Kind, ScheduleSpec
from hanayo_megatron.schedule.placement import bidirectional, linear
from hanayo_megatron.schedule.registry import build_schedule
from hanayo_megatron.simulate.simulate import simulate
from hanayo_megatron.timeline.chrome_trace import save_chrome_trace
from hanayo_megatron.timeline.event import (
    Event,
    Timeline,
    load_timeline,
    save_timeline,
    simulated_timeline,
)


def two_ranks():
    costs = Costs(forward=1, backward=2, transfer=0.5)
    schedule = build_schedule("1f1b", ScheduleSpec(pp=2, microbatches=1))
    return simulated_timeline(simulate(lower(schedule, costs), costs))


def test_all_computes_and_both_ends_of_all_transfers():
    down, up = "0F0 from rank 0 to 1", "1B0 from rank 1 to 0"
    assert sorted(two_ranks().events) == [
        Event(0, 0, 1, "0F0"),
        Event(0, 1, 1.5, down),
        Event(0, 4.5, 5, up),
        Event(0, 5, 7, "0B0"),
        Event(1, 1, 1.5, down),
        Event(1, 1.5, 2.5, "1F0"),
        Event(1, 2.5, 4.5, "1B0"),
        Event(1, 4.5, 5, up),
    ]


def test_computes_are_told_from_the_rest():
    assert Event(0, 0, 1, "3F0").action == Action(3, Kind.F, 0)
    assert Event(0, 0, 1, "0F0 from rank 0 to 1").action is None


def test_saved_and_loaded(tmp_path):
    saved = Timeline(
        title="step 7", placement=bidirectional(2), events=[Event(1, 0.5, 1, "2F0")], unit="s"
    )
    save_timeline(saved, tmp_path / "timeline.json")
    assert load_timeline(tmp_path / "timeline.json") == saved


@pytest.mark.parametrize("content", ["", "[]", '{"title": "x"}', '{"events": [[1]]}'])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"other\.json is not a timeline"):
        load_timeline(path)


def test_chrome_trace(tmp_path):
    measured = Timeline(
        title="measured", placement=bidirectional(2), events=[Event(1, 1.5, 2, "2F4")], unit="s"
    )
    save_chrome_trace([two_ranks(), measured], tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 8 + 1
    assert slices[-1] == {
        "ph": "X",
        "name": "2F4",
        "cat": "F",
        "pid": 1,
        "tid": 1,
        "ts": 1.5e6,
        "dur": 0.5e6,
        "args": {"stage": 0, "microbatch": 4, "chunk": 0, "replica": 1},
    }
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    computes = {names[e["pid"], e["tid"]] for e in slices if e["cat"] != "transfer"}
    transfers = {names[e["pid"], e["tid"]] for e in slices if e["cat"] == "transfer"}
    assert computes == {"rank 0", "rank 1"}
    assert transfers == {"rank 0 transfers", "rank 1 transfers"}
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert titles == ["1f1b", "measured"]


def test_slices_of_one_thread_do_not_overlap(tmp_path):
    """Perfetto drops slices that overlap without nesting."""
    costs = Costs(transfer=0.2)
    schedule = build_schedule("hanayo", ScheduleSpec(pp=4, microbatches=4, waves=2, costs=costs))
    timeline = simulated_timeline(simulate(lower(schedule, costs), costs))
    save_chrome_trace([timeline], tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for thread in {event["tid"] for event in events}:
        slices = sorted(
            (e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == thread
        )
        for (_, end), (start, _) in pairwise(slices):
            assert start >= end - 1e-3


def test_a_placement_that_is_not_one_is_refused(tmp_path):
    save_timeline(Timeline(title="", placement=linear(2), events=[]), tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    content["rank_of"] = [0, 5]
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="stage 1 is placed on rank 5"):
        load_timeline(tmp_path / "a.json")

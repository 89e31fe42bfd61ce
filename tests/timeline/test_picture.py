"""Pictures hold a bar for every event, and say what they show."""

import re
import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from hanayo_megatron.lowering.lower import lower
from hanayo_megatron.schedule import Action, Costs, Kind, Schedule, ScheduleSpec
from hanayo_megatron.schedule.placement import linear
from hanayo_megatron.schedule.registry import build_schedule
from hanayo_megatron.simulate.simulate import simulate
from hanayo_megatron.timeline.event import Event, Timeline, simulated_timeline
from hanayo_megatron.timeline.picture import draw

SVG = "{http://www.w3.org/2000/svg}"


def timeline(name, costs=None, title="", **spec):
    costs = costs or Costs()
    lowered = lower(build_schedule(name, ScheduleSpec(costs=costs, **spec)), costs)
    return simulated_timeline(simulate(lowered, costs), title=title)


def bars(root):
    """Number of bars by the name of their group; a single one is drawn by reference."""
    return {
        group.get("id"): len(group.findall(f"{SVG}path") or group.findall(f".//{SVG}use"))
        for group in root.iter(f"{SVG}g")
        if re.match(r"timeline\d", group.get("id", ""))
    }


def texts(root):
    return ["".join(element.itertext()).strip() for element in root.iter(f"{SVG}text")]


def svg(tmp_path, *timelines):
    draw(timelines, tmp_path / "picture.svg")
    return ET.parse(tmp_path / "picture.svg").getroot()


def test_a_bar_for_every_compute_and_transfer(tmp_path):
    root = svg(tmp_path, timeline("hanayo", Costs(transfer=0.1), pp=3, microbatches=2))
    # One wave on three ranks: two chunks a rank, and per microbatch and direction four transfers
    # (the turn has none), each drawn on both of its ranks.
    assert bars(root) == {
        "timeline0-idle": 3,
        "timeline0-F-shade0": 3 * 2,
        "timeline0-F-shade1": 3 * 2,
        "timeline0-B-shade0": 3 * 2,
        "timeline0-B-shade1": 3 * 2,
        "timeline0-transfers": 2 * 2 * 4 * 2,
    }


def test_chunks_differ_in_shade_and_kinds_in_colour(tmp_path):
    root = svg(tmp_path, timeline("hanayo", pp=2, microbatches=1))
    fills = {
        group.get("id"): {
            re.search(r"fill: (#\w+)", path.get("style"))[1] for path in group.findall(f"{SVG}path")
        }
        for group in root.iter(f"{SVG}g")
        if re.match(r"timeline0-[FB]", group.get("id", ""))
    }
    assert all(len(colours) == 1 for colours in fills.values())
    assert len({colour for colours in fills.values() for colour in colours}) == 4


def test_replicas_differ_in_shade_on_all_ranks(tmp_path):
    root = svg(tmp_path, timeline("chimera", pp=2, microbatches=2))
    shades = {}
    for group in root.iter(f"{SVG}g"):
        if re.match(r"timeline0-F", group.get("id", "")):
            fills = [
                re.search(r"fill: (#\w+)", p.get("style"))[1] for p in group.iter(f"{SVG}path")
            ]
            shades[group.get("id")] = fills
    # Each replica's forwards, one on each rank, have one shade.
    assert {name: len(fills) for name, fills in shades.items()} == {
        "timeline0-F-shade0": 2,
        "timeline0-F-shade1": 2,
    }
    assert len({fill for fills in shades.values() for fill in fills}) == 2
    assert "dark to light: first to last replica" in texts(root)


@pytest.mark.parametrize("name", ["1f1b", "hanayo"])
def test_every_microbatch_can_be_read_at_8_ranks_and_16_microbatches(tmp_path, name):
    root = svg(tmp_path, timeline(name, pp=8, microbatches=16))
    stages = {"1f1b": 8, "hanayo": 16}[name]
    numbers = Counter(text for text in texts(root) if re.fullmatch(r"\d\d?", text))
    for microbatch in range(16):
        # Axis ticks may add a few.
        assert numbers[str(microbatch)] >= 2 * stages
    sizes = [
        float(re.search(r"font(?:-size)?: ([\d.]+)px", element.get("style"))[1])
        for element in root.iter(f"{SVG}text")
    ]
    assert min(sizes) >= 5
    width, height = (float(root.get(side).removesuffix("pt")) / 72 for side in ("width", "height"))
    assert width <= 26
    assert height <= 5


def test_planned_above_measured(tmp_path):
    planned = timeline("1f1b", title="planned", pp=2, microbatches=2)
    measured = Timeline(
        title="measured",
        placement=linear(2),
        events=[Event(0, 0.1, 0.3, "0F0"), Event(1, 0.4, 0.5, "1F0"), Event(1, 0.3, 0.4, "wait")],
        unit="s",
    )
    root = svg(tmp_path, planned, measured)
    found = bars(root)
    assert found["timeline0-F-shade0"] == 4
    assert found["timeline1-F-shade0"] == 2
    assert found["timeline1-transfers"] == 1
    shown = texts(root)
    assert shown.index("planned") < shown.index("measured")
    assert "step 9, idle 33.3%" in shown
    assert "step 0.5 s, idle 70.0%" in shown
    assert {"time", "time (s)", "forward", "backward", "bubble", "rank 0", "rank 1"} <= set(shown)
    heights = {
        text: float(
            element.get("y") or re.search(r"translate\(\S+ (\S+?)\)", element.get("transform"))[1]
        )
        for text, element in zip(shown, root.iter(f"{SVG}text"), strict=True)
        if text in ("planned", "measured")
    }
    assert heights["planned"] < heights["measured"]


def test_split_backwards_have_their_own_colours_and_legend(tmp_path):
    order = tuple(Action(0, kind, 0) for kind in (Kind.F, Kind.I, Kind.W))
    one = simulated_timeline(simulate(lower(Schedule("split", linear(1), 1, (order,)))))
    root = svg(tmp_path, one)
    assert {k: n for k, n in bars(root).items() if "shade" in k} == {
        "timeline0-F-shade0": 1,
        "timeline0-I-shade0": 1,
        "timeline0-W-shade0": 1,
    }
    assert {"forward", "backward, input", "backward, weights"} <= set(texts(root))
    assert "backward" not in texts(root)


def test_the_same_timeline_gives_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw([timeline("1f1b", pp=2, microbatches=2)], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_png(tmp_path):
    draw([timeline("1f1b", pp=2, microbatches=2)], tmp_path / "picture.png")
    content = (tmp_path / "picture.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(content[n : n + 4]) for n in (16, 20))
    assert (width, height) > (1000, 200)


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.svg or \.png"):
        draw([timeline("1f1b", pp=1, microbatches=1)], tmp_path / "picture.gif")

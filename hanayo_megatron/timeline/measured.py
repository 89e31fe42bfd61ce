"""Timelines of steps that really ran, and the plan beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.simulate.simulate import simulate
from hanayo_megatron.timeline.chrome_trace import save_chrome_trace
from hanayo_megatron.timeline.event import Event, Timeline, save_timeline, simulated_timeline
from hanayo_megatron.timeline.picture import draw


def measured_timeline(
    lowered: LoweredSchedule, spans: Sequence[Sequence[tuple[float, float, str]]], *, title: str
) -> Timeline:
    """A timeline from each rank's (start, end, what) in seconds, shifted to start at 0."""
    first = min((start for of_rank in spans for start, _, _ in of_rank), default=0.0)
    events = [
        Event(rank, start - first, end - first, what)
        for rank, of_rank in enumerate(spans)
        for start, end, what in of_rank
    ]
    return Timeline(title=title, placement=lowered.schedule.placement, events=events, unit="s")


def measured_costs(timeline: Timeline) -> Costs:
    """The median time of every stage's actions; transfers cost nothing.

    Kinds that were not measured take as long as is usual: see ``Costs``.
    """
    times: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for event in timeline.events:
        action = event.action
        if action is not None:
            times[action.kind, action.stage].append(event.end - event.start)
    return Costs(stage_times={key: median(found) for key, found in times.items()})


def planned_timeline(lowered: LoweredSchedule, measured: Timeline) -> Timeline:
    """The same step as the simulator has it with the measured times of stages, in seconds."""
    simulation = simulate(lowered, measured_costs(measured))
    title = f"{lowered.schedule.name}, simulated with the measured times and free transfers"
    return simulated_timeline(simulation, title=title, unit="s")


def save_measured(lowered: LoweredSchedule, measured: Timeline, stem: Path) -> None:
    """Write ``stem``.json, and ``stem``.svg and ``stem``.trace.json with the plan beside it."""
    both = [planned_timeline(lowered, measured), measured]
    save_timeline(measured, stem.with_name(f"{stem.name}.json"))
    draw(both, stem.with_name(f"{stem.name}.svg"))
    save_chrome_trace(both, stem.with_name(f"{stem.name}.trace.json"))

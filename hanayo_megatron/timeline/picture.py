"""Timelines as pictures: a row for each rank, time to the right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.timeline.event import Event, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

Colour = tuple[float, float, float]

_COLOURS: dict[Kind, Colour] = {
    Kind.F: (0.17, 0.36, 0.66),
    Kind.B: (0.13, 0.49, 0.34),
    Kind.I: (0.09, 0.52, 0.60),
    Kind.W: (0.85, 0.50, 0.12),
}
_KIND_NAMES = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "backward, input",
    Kind.W: "backward, weights",
}
_IDLE, _TRANSFER, _DARK, _MUTED = "#e6e8ed", "#8a3ffc", "#1f2430", "#6b7080"
_LIGHTEST = 0.66
"""How far towards white the shade of a rank's last stage goes."""

# Of a row of height 1, from its top: the computes, then the transfers.
_BAR_TOP, _BAR_HEIGHT = 0.06, 0.74
_LANE_TOP, _LANE_HEIGHT = 0.83, 0.11

# Inches.
_ROW = 0.38
_LEFT, _RIGHT, _ABOVE, _BELOW = 0.62, 0.72, 0.42, 0.42
_LEGEND_ROW, _LEGEND_COLUMN = 0.24, 1.9
_PER_COMPUTE, _NARROWEST, _WIDEST = 0.12, 7.0, 24.0

_FONT, _SMALLEST_FONT = 7.5, 3.2
"""Points; a digit is about 0.6 of that wide."""


def draw(timelines: Sequence[Timeline], path: str | Path) -> None:
    """Draw timelines below each other into an SVG or PNG file, as its ending says.

    Timelines with the same unit have the same scale. Raises ValueError for another ending.
    """
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"cannot draw {path}: the name must end in .svg or .png")
    from matplotlib import rc_context

    style = {"font.size": _FONT, "svg.fonttype": "none", "svg.hashsalt": "timeline"}
    with rc_context(style):
        figure = _figure(timelines)
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)


def _figure(timelines: Sequence[Timeline]) -> Figure:
    from matplotlib.figure import Figure

    lengths: dict[str, float] = defaultdict(float)
    for timeline in timelines:
        lengths[timeline.unit] = max(lengths[timeline.unit], _end(timeline.events))
    width = _LEFT + _RIGHT + max(_inches_of_time(t, lengths[t.unit]) for t in timelines)
    rows = [_ROW * timeline.placement.num_ranks for timeline in timelines]
    legend = _legend_entries(timelines)
    legend_columns = max(1, int((width - _LEFT) / _LEGEND_COLUMN))
    legend_rows = -(-len(legend) // legend_columns)
    height = sum(rows) + (_ABOVE + _BELOW) * len(rows) + _LEGEND_ROW * legend_rows

    figure = Figure(figsize=(width, height), facecolor="white")
    bottom = height
    for number, (timeline, row) in enumerate(zip(timelines, rows, strict=True)):
        bottom -= _ABOVE + row
        axes = figure.add_axes(
            (_LEFT / width, bottom / height, (width - _LEFT - _RIGHT) / width, row / height)
        )
        bottom -= _BELOW
        points_per_time = 72 * (width - _LEFT - _RIGHT) / (lengths[timeline.unit] or 1)
        axes.set_xlim(0, lengths[timeline.unit] or 1)
        _draw_rows(axes, timeline, points_per_time, name=f"timeline{number}")
    figure.legend(
        handles=legend,
        loc="lower left",
        bbox_to_anchor=(_LEFT / width, 0),
        ncols=legend_columns,
        frameon=False,
        borderpad=0.3,
        borderaxespad=0,
        handlelength=1.2,
        handleheight=0.9,
        columnspacing=1.6,
    )
    return figure


def _inches_of_time(timeline: Timeline, length: float) -> float:
    """Enough for the number of a microbatch in the shortest compute, within limits."""
    durations = [e.end - e.start for e in timeline.events if e.action and e.end > e.start]
    wanted = _PER_COMPUTE * length / min(durations, default=length or 1)
    return min(max(wanted, _NARROWEST), _WIDEST)


def _draw_rows(axes: Axes, timeline: Timeline, points_per_time: float, *, name: str) -> None:
    from matplotlib.collections import PolyCollection

    placement = timeline.placement
    ranks = range(placement.num_ranks)
    end = _end(timeline.events)
    # Of a rank's stages by id: one replica after the other, in each by chunk.
    number_of = {s: n for stages in placement.stages_of for n, s in enumerate(sorted(stages))}
    computes: dict[tuple[Kind, int], list[tuple[Event, Action]]] = defaultdict(list)
    others: list[Event] = []
    for event in timeline.events:
        action = event.action
        if action is None:
            others.append(event)
        else:
            computes[action.kind, number_of[action.stage]].append((event, action))

    idle = [_box(rank, 0, end, _BAR_TOP, _BAR_HEIGHT) for rank in ranks]
    axes.add_collection(PolyCollection(idle, facecolors=_IDLE, linewidths=0, gid=f"{name}-idle"))
    for (kind, number), events in sorted(computes.items()):
        shades = [_shade(placement, kind, event.rank, number) for event, _ in events]
        boxes = [_box(e.rank, e.start, e.end, _BAR_TOP, _BAR_HEIGHT) for e, _ in events]
        bars = PolyCollection(
            boxes,
            facecolors=shades,
            edgecolors="white",
            linewidths=0.4,
            gid=f"{name}-{kind}-shade{number}",
        )
        axes.add_collection(bars)
        for (event, action), shade in zip(events, shades, strict=True):
            _label(axes, event, action, shade, points_per_time)
    lanes = [_box(e.rank, e.start, e.end, _LANE_TOP, _LANE_HEIGHT) for e in others]
    if lanes:
        axes.add_collection(
            PolyCollection(
                lanes, facecolors=_TRANSFER, alpha=0.55, linewidths=0, gid=f"{name}-transfers"
            )
        )
    _decorate(axes, timeline, end)


def _box(rank: int, start: float, end: float, top: float, height: float) -> list[list[float]]:
    high, low = rank + top, rank + top + height
    return [[start, high], [end, high], [end, low], [start, low]]


def _shade(placement: Placement, kind: Kind, rank: int, number: int) -> Colour:
    last = len(placement.stages_of[rank]) - 1
    white = _LIGHTEST * number / last if last else 0.0
    red, green, blue = (part + (1 - part) * white for part in _COLOURS[kind])
    return (red, green, blue)


def _label(axes: Axes, event: Event, action: Action, shade: Colour, points_per_time: float) -> None:
    text = str(action.microbatch)
    room = (event.end - event.start) * points_per_time
    size = min(_FONT, (room - 0.8) / (0.6 * len(text)))
    if size < _SMALLEST_FONT:
        return
    red, green, blue = shade
    is_light = 0.3 * red + 0.59 * green + 0.11 * blue > 0.58
    axes.text(
        (event.start + event.end) / 2,
        event.rank + _BAR_TOP + _BAR_HEIGHT / 2,
        text,
        size=size,
        color=_DARK if is_light else "white",
        ha="center",
        va="center_baseline",
        clip_on=True,
    )


def _decorate(axes: Axes, timeline: Timeline, end: float) -> None:
    """Title, axes, and how idle the step and each rank's own span are."""
    ranks = range(timeline.placement.num_ranks)
    computes = [event for event in timeline.events if event.action]
    of_rank = [[event for event in computes if event.rank == rank] for rank in ranks]
    unit = f" {timeline.unit}" if timeline.unit else ""
    rows = [rank + _BAR_TOP + _BAR_HEIGHT / 2 for rank in ranks]

    axes.set_ylim(len(ranks), 0)
    axes.set_yticks(rows, [f"rank {rank}" for rank in ranks])
    axes.tick_params(length=0, colors=_MUTED, pad=3)
    axes.tick_params(axis="x", length=2.5)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(f"time{unit and f' ({timeline.unit})'}", color=_MUTED, labelpad=1)
    whole = _idle(computes, end * len(ranks))
    heading = {"size": 1.3 * _FONT, "color": _DARK, "pad": 5}
    axes.set_title(timeline.title, loc="left", weight="bold", **heading)
    axes.set_title(f"step {end:.6g}{unit}, idle {whole:.1%}", loc="right", **heading)
    beside = [(-0.25, "own span"), *zip(rows, map(_own_idle, of_rank), strict=True)]
    for height, text in beside:
        axes.annotate(
            text,
            (1, height),
            xycoords=("axes fraction", "data"),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=_MUTED,
        )


def _own_idle(events: Sequence[Event]) -> str:
    span = _end(events) - min((event.start for event in events), default=0.0)
    return f"idle {_idle(events, span):.1%}"


def _idle(events: Iterable[Event], total: float) -> float:
    return 1 - sum(event.end - event.start for event in events) / total if total else 0.0


def _legend_entries(timelines: Sequence[Timeline]) -> list[Patch]:
    from matplotlib.patches import Patch

    actions = [event.action for timeline in timelines for event in timeline.events]
    kinds = {action.kind for action in actions if action}
    entries = [Patch(color=_COLOURS[k], label=_KIND_NAMES[k]) for k in Kind if k in kinds]
    if None in actions:
        entries.append(Patch(color=_TRANSFER, alpha=0.55, label="transfer (below the bars)"))
    entries.append(Patch(color=_IDLE, label="bubble"))
    placements = [t.placement for t in timelines if max(map(len, t.placement.stages_of)) > 1]
    if placements:
        parts = {"replica" if p.replicas > 1 else "chunk" for p in placements}
        label = f"dark to light: first to last {' or '.join(sorted(parts))}"
        entries.append(Patch(alpha=0, label=label))
    return entries


def _end(events: Iterable[Event]) -> float:
    return max((event.end for event in events), default=0.0)

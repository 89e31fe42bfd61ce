"""Who did what when: one format for simulated and for measured steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hanayo_megatron.lowering.operation import Exchange
from hanayo_megatron.schedule.action import Action
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.simulate.simulate import Simulation


class Event(NamedTuple):
    """Something that a rank did.

    ``what`` is a compute if it is an action's cell, such as ``3F0``; any other text names a
    transfer or a wait, which may run beside a compute.
    """

    rank: int
    start: float
    end: float
    what: str

    @property
    def action(self) -> Action | None:
        """The compute, or ``None`` for anything else."""
        try:
            return Action.parse(self.what)
        except ValueError:
            return None


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One step of all ranks.

    Args:
        title: what it shows.
        placement: rank of every stage.
        events: in any order.
        unit: of time, such as ``s``; empty if it is that of the given costs.
    """

    title: str
    placement: Placement
    events: Sequence[Event]
    unit: str = ""


def simulated_timeline(simulation: Simulation, *, title: str = "", unit: str = "") -> Timeline:
    """All computes, and those transfers that take time on both of their ranks."""
    schedule, time = simulation.schedule, simulation.ticks.time
    events = [
        Event(rank, time(start), time(end), str(action))
        for rank, order in enumerate(schedule.orders)
        for action, start, end in zip(
            order, simulation.starts[rank], simulation.ends[rank], strict=True
        )
    ]
    for start, end, rank, exchange in simulation.exchanges:
        if end > start:
            what = _describe(exchange)
            events.append(Event(rank, time(start), time(end), what))
            events.append(Event(exchange.peer, time(start), time(end), what))
    return Timeline(
        title=title or schedule.name, placement=schedule.placement, events=events, unit=unit
    )


def save_timeline(timeline: Timeline, path: str | Path) -> None:
    """Write a timeline as JSON, for ``load_timeline``."""
    placement = timeline.placement
    content = {
        "title": timeline.title,
        "unit": timeline.unit,
        "ranks": placement.num_ranks,
        "rank_of": placement.rank_of,
        "replicas": placement.replicas,
        "events": timeline.events,
    }
    Path(path).write_text(json.dumps(content), encoding="utf-8")


def load_timeline(path: str | Path) -> Timeline:
    """Read what ``save_timeline`` wrote. Raises ValueError naming the file if it is not that."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        placement = Placement(content["ranks"], tuple(content["rank_of"]), content["replicas"])
        return Timeline(
            title=content["title"],
            placement=placement,
            events=[Event(*event) for event in content["events"]],
            unit=content["unit"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a timeline: {error!r}") from error


def _describe(exchange: Exchange) -> str:
    transfers = (*exchange.sends, *exchange.receives)
    return ", ".join(
        f"{t.source_stage}{t.kind}{t.microbatch} from rank {t.source} to {t.target}"
        for t in transfers
    )

"""Traces for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanayo_megatron.timeline.event import Event, Timeline

_MICROSECONDS = 1e6


def save_chrome_trace(timelines: Sequence[Timeline], path: str | Path) -> None:
    """Write timelines as one trace: a process for each, a thread for the computes of each rank.

    Whatever else a rank did is on further threads, as many as ran at once. One unit of time is
    shown as a second.
    """
    events = [event for n, timeline in enumerate(timelines) for event in _trace(n, timeline)]
    Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def _trace(process: int, timeline: Timeline) -> list[dict[str, Any]]:
    ranks = range(timeline.placement.num_ranks)
    trace = [_name("process", process, 0, timeline.title)]
    trace += (_name("thread", process, rank, f"rank {rank}") for rank in ranks)
    others: list[list[Event]] = [[] for _ in ranks]
    for event in timeline.events:
        if event.action is None:
            others[event.rank].append(event)
        else:
            trace.append(_slice(process, event.rank, event, _compute(timeline, event)))
    thread = len(ranks)
    for rank in ranks:
        for lane in _lanes(others[rank]):
            trace.append(_name("thread", process, thread, f"rank {rank} transfers"))
            trace += (_slice(process, thread, event, {"cat": "transfer"}) for event in lane)
            thread += 1
    return trace


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {
        "ph": "M",
        "name": f"{what}_name",
        "pid": process,
        "tid": thread,
        "args": {"name": name},
    }


def _slice(process: int, thread: int, event: Event, details: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": event.what,
        "pid": process,
        "tid": thread,
        "ts": event.start * _MICROSECONDS,
        "dur": (event.end - event.start) * _MICROSECONDS,
        **details,
    }


def _compute(timeline: Timeline, event: Event) -> dict[str, Any]:
    stage, kind, microbatch = event.action
    placement = timeline.placement
    return {
        "cat": str(kind),
        "args": {
            "stage": placement.model_stage_of(stage),
            "microbatch": microbatch,
            "chunk": placement.chunk_of[stage],
            "replica": placement.replica_of(stage),
        },
    }


def _lanes(events: Sequence[Event]) -> list[list[Event]]:
    """Spread over as few lanes as keep the events of a lane apart: Perfetto drops overlaps."""
    lanes: list[list[Event]] = []
    for event in sorted(events, key=lambda event: event.start):
        free = next((lane for lane in lanes if lane[-1].end <= event.start), None)
        if free is None:
            lanes.append([event])
        else:
            free.append(event)
    return lanes

"""Costs from a JSON file."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.placement import Placement

_LINK = re.compile(r"(\d+)->(\d+)")


def load_costs(path: str | Path) -> Costs:
    """Read a JSON object whose keys are the fields of Costs, all optional.

    ``stage_times`` is ``{"F": {"0": 1.5, ...}, ...}``: kind, stage id, time of that stage's action;
    ``link_times`` is ``{"0->1": 0.2, ...}``: source rank, target rank, time of one transfer.

    Raises ValueError naming the file, the field and what is wrong with it, OSError if the file
    cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"costs file {path} is not JSON: {error}") from error
    try:
        return parse_costs(content)
    except ValueError as error:
        raise ValueError(f"costs file {path}: {error}") from error


def parse_costs(content: Any) -> Costs:
    """The same from the parsed JSON."""
    if not isinstance(content, dict):
        raise ValueError(f"expected an object with fields of costs, got {_shown(content)}")
    known = [field.name for field in fields(Costs)]
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise ValueError(f"unknown field {name!r}; known are {', '.join(known)}")
        if name == "stage_times":
            values[name] = _stage_times(value)
        elif name == "link_times":
            values[name] = _link_times(value)
        elif not (name == "backward" and value is None):
            values[name] = _number(value, name)
    return Costs(**values)


def check_costs_fit(costs: Costs, placement: Placement) -> None:
    """Raise ValueError if a figure is for a stage or rank that the placement does not have."""
    for kind, stage in costs.stage_times:
        if stage >= placement.num_stages:
            raise ValueError(
                f"stage_times.{kind}.{stage}: there is no stage {stage}; this schedule's stages "
                f"are 0..{placement.num_stages - 1}"
            )
    for source, target in costs.link_times:
        if max(source, target) >= placement.num_ranks:
            raise ValueError(
                f"link_times.{source}->{target}: there is no such link; ranks are "
                f"0..{placement.num_ranks - 1}"
            )


def _stage_times(value: Any) -> dict[tuple[Kind, int], float]:
    times = {}
    for kind, stages in _object(value, "stage_times").items():
        if kind not in list(Kind):
            raise ValueError(f"stage_times has kind {kind!r}; expected one of F, B, I, W")
        for stage, time in _object(stages, f"stage_times.{kind}").items():
            if not stage.isdecimal():
                raise ValueError(f"stage_times.{kind} has key {stage!r}; expected a stage id")
            times[Kind(kind), int(stage)] = _number(time, f"stage_times.{kind}.{stage}")
    return times


def _link_times(value: Any) -> dict[tuple[int, int], float]:
    times = {}
    for link, time in _object(value, "link_times").items():
        match = _LINK.fullmatch(link)
        if match is None:
            raise ValueError(
                f"link_times has key {link!r}; expected two ranks, source and target, as in '0->1'"
            )
        times[int(match[1]), int(match[2])] = _number(time, f"link_times.{link}")
    return times


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {_shown(value)}")
    return value


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {_shown(value)}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be finite and not negative, got {value}")
    return value


def _shown(value: Any) -> str:
    return json.dumps(value)

"""Schedules of the library at given sizes, without those that a schedule refuses."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hanayo_megatron.schedule import ScheduleError, ScheduleSpec, build_schedule, schedule_names
from hanayo_megatron.schedule.placement import wave


def library_cases(
    ranks: Iterable[int], waves: Iterable[int], microbatches: Iterable[int]
) -> list[pytest.ParameterSet]:
    """(name, spec) of every legal combination; several waves only where they mean something."""
    cases = []
    for name in schedule_names():
        for pp in ranks:
            for w in waves:
                for m in microbatches:
                    spec = ScheduleSpec(pp=pp, microbatches=m, waves=w)
                    try:
                        placement = build_schedule(name, spec).placement
                    except ScheduleError:
                        continue
                    if w == 1 or placement == wave(pp, w):
                        cases.append(pytest.param(name, spec, id=f"{name}-p{pp}-w{w}-m{m}"))
    return cases

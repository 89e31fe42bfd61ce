"""Schedules by name."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points

from hanayo_megatron.schedule.schedule import Schedule, ScheduleError, ScheduleSpec

ScheduleBuilder = Callable[[ScheduleSpec], Schedule]

ENTRY_POINT_GROUP = "hanayo_megatron.schedules"

_builders: dict[str, ScheduleBuilder] = {}
_aliases: dict[str, str] = {}


def register_schedule(
    name: str, *, aliases: tuple[str, ...] = ()
) -> Callable[[ScheduleBuilder], ScheduleBuilder]:
    """Make a function from a ScheduleSpec to a Schedule available by name.

    Raises ScheduleError if another function has the name already.
    """

    def register(build: ScheduleBuilder) -> ScheduleBuilder:
        for taken in (name, *aliases):
            known = _builders.get(_aliases.get(taken, taken))
            if known is not None and known.__qualname__ != build.__qualname__:
                raise ScheduleError(
                    f"schedule name {taken!r} is taken by {known.__module__}.{known.__qualname__}"
                )
        _builders[name] = build
        _aliases.update(dict.fromkeys(aliases, name))
        return build

    return register


def build_schedule(name: str, spec: ScheduleSpec) -> Schedule:
    """Build a registered schedule. Raises ScheduleError for an unknown name or an unfit spec."""
    return _builders[canonical_name(name)](spec)


def canonical_name(name: str) -> str:
    """The registered name behind a name or an alias. Raises ScheduleError for an unknown one."""
    _load_known()
    resolved = _aliases.get(name, name)
    if resolved not in _builders:
        near = difflib.get_close_matches(name, [*_builders, *_aliases], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ScheduleError(
            f"unknown pipeline schedule {name!r}{hint} Known: {', '.join(schedule_names())}"
        )
    return resolved


def schedule_names() -> list[str]:
    """Names of all registered schedules, without aliases."""
    _load_known()
    return sorted(_builders)


def schedule_aliases(name: str) -> list[str]:
    return sorted(alias for alias, target in _aliases.items() if target == name)


def schedule_help(name: str) -> str:
    """What the schedule's docstring says. Raises ScheduleError for an unknown name."""
    return inspect.getdoc(_builders[canonical_name(name)]) or ""


def load_schedule_module(module: str) -> None:
    """Import a user's module so that its ``@register_schedule`` functions are known."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ScheduleError(
            f"--pipeline-schedule-module {module!r} cannot be imported: {error}; it must be on "
            "PYTHONPATH on every rank"
        ) from error


@cache
def _load_known() -> None:
    importlib.import_module("hanayo_megatron.schedule.library")
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        entry.load()

"""Schedules by name."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points

from hanayo_megatron.schedule.collector import collector_paused
from hanayo_megatron.schedule.csv_file import load_schedule
from hanayo_megatron.schedule.memory import check_memory_limit
from hanayo_megatron.schedule.schedule import Schedule, ScheduleError, ScheduleSpec
from hanayo_megatron.schedule.verify import verify

ScheduleBuilder = Callable[[ScheduleSpec], Schedule]

ENTRY_POINT_GROUP = "hanayo_megatron.schedules"

_LIBRARY = "hanayo_megatron.schedule.library"

_log = logging.getLogger(__name__)

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
            if known is not None and _path(known) != _path(build):  # same path: a reloaded module
                raise ScheduleError(
                    f"schedule name {taken!r} of {_path(build)} is taken by {_path(known)}"
                )
        _builders[name] = build
        _aliases.update(dict.fromkeys(aliases, name))
        return build

    return register


def build_schedule(name: str, spec: ScheduleSpec) -> Schedule:
    """Build a registered schedule, or read one from a file whose name ends in ``.csv``.

    What the package did not make itself is verified. Raises ScheduleError for an unknown name, a
    spec that the schedule cannot be built for or that the file does not fit, a faulty schedule, or
    one that holds more activations than ``spec.memory_limit``.
    """
    if _is_file(name):
        schedule = load_schedule(name)
        _check_fit(schedule, spec)
    else:
        build = _builders[canonical_name(name)]
        with collector_paused():
            schedule = build(spec)
        if not build.__module__.startswith(f"{_LIBRARY}."):
            if not isinstance(schedule, Schedule):
                raise ScheduleError(
                    f"{_path(build)} must return a Schedule, it returned {type(schedule).__name__}"
                )
            _check_fit(schedule, spec)
            verify(schedule)
    check_memory_limit(schedule, spec.memory_limit)
    return schedule


def _path(build: ScheduleBuilder) -> str:
    return f"{build.__module__}.{build.__qualname__}"


def _is_file(name: str) -> bool:
    return name.endswith(".csv")


def _check_fit(schedule: Schedule, spec: ScheduleSpec) -> None:
    for what, given, asked in (
        ("ranks", schedule.placement.num_ranks, spec.pp),
        ("microbatches", schedule.num_microbatches, spec.microbatches),
    ):
        if given != asked:
            raise ScheduleError(
                f"schedule {schedule.name!r} is for {given} {what}, asked for are {asked}"
            )


def canonical_name(name: str) -> str:
    """The registered name behind a name or an alias; files keep their name.

    Raises ScheduleError for an unknown one.
    """
    if _is_file(name):
        return name
    _load_known()
    resolved = _aliases.get(name, name)
    if resolved not in _builders:
        near = difflib.get_close_matches(name, [*_builders, *_aliases], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        if name.endswith(".py"):
            module = name.removesuffix(".py")
            hint = f"; a module is named by --pipeline-schedule-module {module}."
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
    importlib.import_module(_LIBRARY)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            entry.load()
        except Exception:  # one broken package must not take the others' schedules away
            _log.warning("schedules of entry point %s are left out", entry, exc_info=True)

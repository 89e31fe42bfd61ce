"""The user's own schedules: by decorator, module and entry point."""

import sys
from importlib.metadata import EntryPoint

import pytest

from hanayo_megatron.schedule import registry
from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.placement import Placement, linear
from hanayo_megatron.schedule.registry import (
    build_schedule,
    canonical_name,
    load_schedule_module,
    register_schedule,
    schedule_aliases,
    schedule_names,
)
from hanayo_megatron.schedule.schedule import Schedule, ScheduleError, ScheduleSpec

SPEC = ScheduleSpec(pp=4, microbatches=3)

MODULE = """
from hanayo_megatron.schedule import Action, Kind, Schedule, register_schedule
from hanayo_megatron.schedule.placement import Placement

@register_schedule({name!r})
def shuffled(spec):
    '''All forwards, then backwards in reverse order, on ranks that are no neighbours.'''
    rank_of = tuple(range(0, spec.pp, 2)) + tuple(range(1, spec.pp, 2))
    orders = [()] * spec.pp
    for stage, rank in enumerate(rank_of):
        forward = [Action(stage, Kind.F, m) for m in range(spec.microbatches)]
        backward = [Action(stage, Kind.B, m) for m in reversed(range(spec.microbatches))]
        orders[rank] = tuple(forward + backward)
    return Schedule({name!r}, Placement(spec.pp, rank_of), spec.microbatches, tuple(orders))
"""


@pytest.fixture
def own_names(monkeypatch):
    """Names registered in a test are gone after it."""
    schedule_names()
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))
    monkeypatch.setattr(registry, "_aliases", dict(registry._aliases))


@pytest.fixture
def module(tmp_path, monkeypatch, own_names):
    """Writes a module that registers a schedule of the given name."""

    def write(module_name, text):
        (tmp_path / f"{module_name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, module_name, raising=False)

    yield write
    for name in ("my_schedules", "other_schedules"):
        sys.modules.pop(name, None)


def gpipe_order(stage, microbatches):
    return tuple(Action(stage, kind, m) for kind in (Kind.F, Kind.B) for m in range(microbatches))


def test_a_function_is_a_schedule(own_names):
    @register_schedule("mine", aliases=("my-own",))
    def mine(spec):
        orders = tuple(gpipe_order(rank, spec.microbatches) for rank in range(spec.pp))
        return Schedule("mine", linear(spec.pp), spec.microbatches, orders)

    assert build_schedule("mine", SPEC).orders == build_schedule("gpipe", SPEC).orders
    assert build_schedule("my-own", SPEC) == build_schedule("mine", SPEC)
    assert canonical_name("my-own") == "mine"
    assert "mine" in schedule_names()
    assert schedule_aliases("mine") == ["my-own"]


def test_a_module_registers_schedules(module):
    module("my_schedules", MODULE.format(name="zigzag"))
    load_schedule_module("my_schedules")
    schedule = build_schedule("zigzag", SPEC)
    assert schedule.placement == Placement(4, (0, 2, 1, 3))
    load_schedule_module("my_schedules")  # a second time does no harm


def test_a_module_that_is_not_there(own_names):
    with pytest.raises(ScheduleError, match=r"'no_such_schedules' cannot be imported.*PYTHONPATH"):
        load_schedule_module("no_such_schedules")


@pytest.mark.parametrize("name", ["hanayo", "dapple"])
def test_names_of_the_library_are_taken(module, name):
    module("my_schedules", MODULE.format(name=name))
    with pytest.raises(ScheduleError, match=f"'{name}' of my_schedules.shuffled is taken by"):
        load_schedule_module("my_schedules")


def test_a_function_of_the_same_name_does_not_replace_the_librarys(own_names):
    def gpipe(spec):
        raise AssertionError

    with pytest.raises(ScheduleError, match=r"'gpipe' of .* is taken by"):
        register_schedule("gpipe")(gpipe)


def test_entry_points_register_schedules(module, monkeypatch):
    module("other_schedules", MODULE.format(name="from-a-package"))
    points = [
        EntryPoint("broken", "no_such_package", registry.ENTRY_POINT_GROUP),
        EntryPoint("other", "other_schedules", registry.ENTRY_POINT_GROUP),
    ]
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group: points if group == "hanayo_megatron.schedules" else [],
    )
    registry._load_known.cache_clear()
    assert "from-a-package" in schedule_names()
    assert "hanayo" in schedule_names()


def test_unknown_names(own_names):
    with pytest.raises(ScheduleError, match=r"'hannayo'; did you mean 'hanayo'\? Known: 1f1b"):
        build_schedule("hannayo", SPEC)
    with pytest.raises(ScheduleError, match=r"unknown pipeline schedule 'xyzzy'\. Known: 1f1b"):
        build_schedule("xyzzy", SPEC)
    with pytest.raises(ScheduleError, match=r"'own.py'; .* --pipeline-schedule-module own\. Known"):
        build_schedule("own.py", SPEC)


def test_a_faulty_schedule_of_the_user_is_refused(own_names):
    @register_schedule("late")
    def late(spec):
        orders = [gpipe_order(rank, spec.microbatches) for rank in range(spec.pp)]
        orders[2] = orders[2][::-1]
        return Schedule("late", linear(spec.pp), spec.microbatches, tuple(orders))

    with pytest.raises(ScheduleError, match=r"'late' has \d faults") as error:
        build_schedule("late", SPEC)
    assert "   2         0  2B2   2F2 before it; that is at position 3" in str(error.value)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda spec: None, "must return a Schedule, it returned NoneType"),
        (lambda spec: build_schedule("1f1b", ScheduleSpec(pp=4, microbatches=2)), "for 2 microb"),
        (lambda spec: build_schedule("1f1b", ScheduleSpec(pp=2, microbatches=3)), "for 2 ranks"),
    ],
)
def test_what_does_not_fit_the_spec_is_refused(own_names, made, message):
    register_schedule("odd")(made)
    with pytest.raises(ScheduleError, match=message):
        build_schedule("odd", SPEC)


def test_a_users_schedule_keeps_the_memory_limit(own_names):
    @register_schedule("hungry")
    def hungry(spec):
        return build_schedule("gpipe", ScheduleSpec(pp=spec.pp, microbatches=spec.microbatches))

    with pytest.raises(ScheduleError, match="holds 3 M_a on rank 0, more than the memory limit"):
        build_schedule("hungry", ScheduleSpec(pp=4, microbatches=3, memory_limit=2))


@pytest.mark.parametrize("field", ["pp", "microbatches", "waves", "chunks"])
def test_specs_need_whole_numbers(field):
    fields = {"pp": 2, "microbatches": 2, field: 0}
    with pytest.raises(ScheduleError, match=f"{field} must be a whole number of at least 1, got 0"):
        ScheduleSpec(**fields)

"""Verification: what is right passes, every single fault is found and named."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_strategies import is_legal, mutations, user_schedules

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.forward_only import forward_only_schedule
from hanayo_megatron.schedule.placement import bidirectional, linear, wave
from hanayo_megatron.schedule.registry import build_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleError, ScheduleSpec
from hanayo_megatron.schedule.verify import find_faults, verify


def rows(*cells):
    return tuple(tuple(Action.parse(cell) for cell in row.split()) for row in cells)


def two_ranks(*cells, microbatches=1):
    return Schedule("mine", linear(2), microbatches, rows(*cells))


def faults_of(schedule, **options):
    return [(f.rank, f.position, f.cell) for f in find_faults(schedule, **options)]


@pytest.mark.parametrize(
    ("cells", "where", "expected"),
    [
        (("0F0", "1F0 1B0"), (0, None, "0B0"), "it, or I and W, once; it is missing"),
        (("0B0", "1F0 1B0"), (0, None, "0F0"), "it once; it is missing"),
        (("0F0 0I0", "1F0 1B0"), (0, None, "0W0"), "it once; it is missing"),
        (("0F0 0W0", "1F0 1B0"), (0, None, "0I0"), "it once; it is missing"),
        (("0F0 0B0 0I0", "1F0 1B0"), (0, 2, "0I0"), "either B or I and W; B is there too"),
        (("0F0 0I0 0W0 0B0", "1F0 1B0"), (0, 1, "0I0"), "either B or I and W; B is there too"),
        (("0F0 0B0 0F0", "1F0 1B0"), (0, 2, "0F0"), "once; it is at position 0 already"),
        (("0F0 0B0", "1F0 1B0 0F0"), (1, 2, "0F0"), "on rank 0, where stage 0 is placed"),
        (("0F0 0B0", "1B0 1F0"), (1, 0, "1B0"), "1F0 before it; that is at position 1"),
        (("0F0 0W0 0I0", "1F0 1B0"), (0, 1, "0W0"), "0I0 before it; that is at position 2"),
        (("0F0 0B0", "1F0 1B0 2F0"), (1, 2, "2F0"), "stages 0..1, microbatches 0..0"),
        (("0F0 0B0", "1F0 1B0 1F1"), (1, 2, "1F1"), "stages 0..1, microbatches 0..0"),
        (("0F0 0B0", ""), (1, None, ""), "at least one action; every rank holds a stage"),
    ],
)
def test_a_fault_is_named(cells, where, expected):
    faults = find_faults(two_ranks(*cells))
    assert (*where, expected) in [tuple(fault) for fault in faults]
    with pytest.raises(ScheduleError) as error:
        verify(two_ranks(*cells))
    assert expected in str(error.value)
    assert str(error.value).startswith("schedule 'mine' has ")


def test_a_single_fault_has_no_company():
    assert faults_of(two_ranks("0F0 0B0", "1F0")) == [(1, None, "1B0")]
    assert faults_of(two_ranks("0F0 0B0", "1F0 1B0 1B0")) == [(1, 2, "1B0")]
    assert faults_of(two_ranks("0F0 0B0 1B0", "1F0")) == [(0, 2, "1B0"), (1, None, "1B0")]


def test_orders_that_wait_for_each_other():
    schedule = two_ranks("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0", microbatches=2)
    assert [tuple(fault) for fault in find_faults(schedule)] == [
        (0, 1, "0B0", "1B0 done; rank 1 has it at position 3 and waits at position 0"),
        (1, 0, "1F1", "0F1 done; rank 0 has it at position 2 and waits at position 1"),
    ]


def test_a_rank_that_waits_for_itself():
    schedule = Schedule("mine", wave(1, 1), 1, rows("1F0 0F0 1B0 0B0"))
    assert [tuple(fault) for fault in find_faults(schedule)] == [
        (0, 0, "1F0", "0F0 done; rank 0 has it at position 1")
    ]


def test_a_microbatch_in_two_replicas():
    orders = rows("0F0 3F1 3B1 0B0 3F0 3B0", "2F1 1F0 1B0 2B1")
    schedule = Schedule("mine", bidirectional(2), 2, orders)
    assert faults_of(schedule) == [(0, 4, "3F0"), (0, 5, "3B0")]
    assert "microbatch 0 goes through replica 0" in find_faults(schedule)[0].expected


def test_a_microbatch_in_no_replica():
    schedule = Schedule("mine", bidirectional(2), 2, rows("0F0 0B0", "1F0 1B0"))
    assert faults_of(schedule) == [
        (0, None, "0F1"),
        (0, None, "0B1"),
        (1, None, "1F1"),
        (1, None, "1B1"),
    ]


def test_memory_limit():
    schedule = build_schedule("gpipe", ScheduleSpec(pp=2, microbatches=4))
    assert faults_of(schedule, memory_limit=4) == []
    assert faults_of(schedule, memory_limit=3) == [(0, 3, "0F3"), (1, 3, "1F3")]
    assert "at most 3 M_a held; this is 4" in find_faults(schedule, memory_limit=3)[0].expected


def test_memory_limit_counts_until_the_weight_gradient():
    schedule = two_ranks("0F0 0I0 0F1 0I1 0W0 0W1", "1F0 1B0 1F1 1B1", microbatches=2)
    assert faults_of(schedule, memory_limit=2) == []
    assert faults_of(schedule, memory_limit=1) == [(0, 2, "0F1")]


def test_memory_limit_counts_a_stage_by_its_share():
    schedule = build_schedule("hanayo", ScheduleSpec(pp=4, microbatches=4, waves=2))
    assert faults_of(schedule, memory_limit=4) == []
    assert len(faults_of(schedule, memory_limit=3.24)) == 4
    assert len(faults_of(schedule, memory_limit=3.25)) == 3  # rank 0 holds ((2W-1)P+1)/2W


def test_what_is_no_action():
    schedule = Schedule("mine", linear(1), 1, ((Action(0, "F", 0), (0, Kind.B, 0)),))
    assert [fault.position for fault in find_faults(schedule)] == [0, 1]
    assert "an Action whose kind is a Kind" in find_faults(schedule)[0].expected


def test_wrong_number_of_ranks():
    schedule = Schedule("mine", linear(2), 1, rows("0F0 0B0"))
    assert find_faults(schedule)[-1].expected == "orders of 2 ranks; there are 1"


def test_forwards_only_are_enough_for_evaluation_alone():
    schedule = forward_only_schedule(wave(2, 1), 3)
    assert find_faults(schedule, forward_only=True) == []
    assert len(find_faults(schedule)) == 12
    assert all("it, or I and W, once" in fault.expected for fault in find_faults(schedule))


def test_all_faults_come_in_one_table():
    with pytest.raises(ScheduleError) as error:
        verify(two_ranks("0F0 0F0", "1B0 1F0 7F0"), memory_limit=1)
    assert str(error.value).splitlines() == [
        "schedule 'mine' has 5 faults:",
        "rank  position  cell  expected",
        "   0         1  0F0   once; it is at position 0 already",
        "   0         1  0F0   at most 1 M_a held; this is 2",
        "   0         -  0B0   it, or I and W, once; it is missing",
        "   1         0  1B0   1F0 before it; that is at position 1",
        "   1         2  7F0   stages 0..1, microbatches 0..0",
    ]


def test_a_long_table_is_cut():
    schedule = Schedule("mine", linear(2), 300, ((), ()))
    with pytest.raises(ScheduleError, match=r"has 1202 faults") as error:
        verify(schedule)
    assert str(error.value).endswith("... and 1002 more")


@settings(max_examples=150, deadline=None)
@given(user_schedules())
def test_legal_user_schedules_pass(schedule):
    assert is_legal(schedule)
    assert find_faults(schedule) == []


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_mutated_user_schedules_pass_only_if_legal(data):
    schedule = data.draw(mutations(data.draw(user_schedules())))
    assert (find_faults(schedule) == []) == is_legal(schedule)


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "hanayo", "zb-v", "chimera", "dualpipe-v"])
def test_every_missing_cell_is_found(name):
    schedule = build_schedule(name, ScheduleSpec(pp=2, microbatches=4))
    for rank, order in enumerate(schedule.orders):
        for at in range(len(order)):
            orders = [list(o) for o in schedule.orders]
            dropped = orders[rank].pop(at)
            faults = find_faults(replace(schedule, orders=tuple(map(tuple, orders))))
            assert [f.rank for f in faults] == [rank]
            assert faults[0].cell.startswith(str(dropped.stage))
            assert faults[0].cell.endswith(str(dropped.microbatch))


def test_verification_is_fast():
    schedule = build_schedule("zb-v", ScheduleSpec(pp=16, microbatches=128))
    assert sum(map(len, schedule.orders)) == 12_288
    start = time.process_time()
    assert find_faults(schedule) == []
    assert time.process_time() - start < 0.1

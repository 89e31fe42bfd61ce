"""Transfers that do not fit each other or the schedule are named, all at once."""

import pytest

from hanayo_megatron.lowering.deadlock import DeadlockError, check_deadlock_free
from hanayo_megatron.lowering.lower import LoweredSchedule, lower
from hanayo_megatron.lowering.operation import Announce, Compute, Exchange, Free, Transfer
from hanayo_megatron.lowering.transfer_faults import find_transfer_faults
from hanayo_megatron.schedule import Action, Kind, ScheduleSpec
from hanayo_megatron.schedule.registry import build_schedule

ACTIVATION = Transfer(Kind.F, 0, 0, 1, 0, 1)
GRADIENT = Transfer(Kind.B, 0, 1, 0, 1, 0)
A, G = str(ACTIVATION), str(GRADIENT)


def faults(*, first=None, second=None):
    """Faults of 1F1B on two ranks with one microbatch after a rank's program was changed."""
    lowered = lower(build_schedule("1f1b", ScheduleSpec(pp=2, microbatches=1)))
    programs = [list(program) for program in lowered.programs]
    for change, program in zip((first, second), programs, strict=True):
        if change:
            change(program)
    return find_transfer_faults(LoweredSchedule(lowered.schedule, tuple(map(tuple, programs))))


def index_of(program, kind, *, after=0):
    return next(i for i, o in enumerate(program) if i >= after and isinstance(o, kind))


def test_a_right_program_has_none():
    assert faults() == []


def test_programs_are_as_the_other_tests_expect():
    lowered = lower(build_schedule("1f1b", ScheduleSpec(pp=2, microbatches=1)))
    f, b = Kind.F, Kind.B
    assert lowered.programs[0][:3] == (
        Compute(Action(0, f, 0)),
        Exchange(1, (ACTIVATION,), ()),
        Exchange(1, (), (GRADIENT,)),
    )
    assert lowered.programs[1][:3] == (
        Exchange(0, (), (ACTIVATION,)),
        Compute(Action(1, f, 0)),
        Compute(Action(1, b, 0)),
    )


def test_a_missing_side():
    assert faults(second=lambda p: p.pop(0)) == [
        "rank 1 at position 0 runs 1F0 before its input is received",
        f"rank 1 never receives the {A}",
    ]

    def forget_to_send(program):
        del program[1]

    assert f"rank 0 never sends the {A}" in faults(first=forget_to_send)


def test_twice():
    assert faults(first=lambda p: p.insert(2, p[1])) == [
        f"rank 0 at position 2 sends the {A} again"
    ]
    assert faults(second=lambda p: p.insert(1, p[0])) == [
        f"rank 1 at position 1 receives the {A} again"
    ]


def test_sent_before_it_is_computed():
    def early(program):
        program[0], program[1] = program[1], program[0]

    assert faults(first=early) == [f"rank 0 at position 0 sends the {A} before it is computed"]


def test_frees():
    def unfreed(program):
        del program[index_of(program, Free)]

    assert faults(first=unfreed) == [f"rank 0 never frees the {A}"]

    def freed_first(program):
        program.insert(1, program.pop(index_of(program, Free)))

    assert faults(first=freed_first) == [
        f"rank 0 at position 1 frees the {A}, which it has not sent before",
        f"rank 0 never frees the {A}",
    ]


def test_a_rank_that_sends_to_itself():
    own = Transfer(Kind.F, 0, 0, 1, 0, 0)
    assert "rank 0 at position 1 exchanges with itself" in faults(
        first=lambda p: p.insert(1, Exchange(0, (own,), (own,)))
    )


def test_an_empty_group():
    assert faults(first=lambda p: p.insert(1, Exchange(1, (), ()))) == [
        "rank 0 at position 1 exchanges nothing"
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        ACTIVATION._replace(target=0),
        ACTIVATION._replace(source=1),
        ACTIVATION._replace(target_stage=0),
        ACTIVATION._replace(source_stage=1, target_stage=2),
        GRADIENT,
    ],
)
def test_transfers_that_do_not_fit(wrong):
    found = faults(first=lambda p: p.insert(1, Exchange(1, (wrong,), ())))
    assert any("does not fit the transfer or the placement" in fault for fault in found)


def test_an_input_that_nobody_reads():
    def without_backward(program):
        del program[index_of(program, Compute, after=1)]

    assert faults(first=without_backward) == [
        "rank 0 never reads the gradient of microbatch 0 that it receives for stage 0"
    ]


def test_announcements_that_do_not_fit_the_exchanges():
    def announced(program):
        program[1:1] = [Announce(1, (ACTIVATION,), ())]

    assert faults(first=announced) == [
        "rank 0 at position 3 exchanges a group with rank 1 that it did not announce"
    ]

    def early(program):
        program.insert(0, Announce(1, (ACTIVATION,), ()))
        program.insert(3, Announce(1, (), (GRADIENT,)))

    assert faults(first=early) == [f"rank 0 at position 0 announces the {A} before it is computed"]

    def never_sent(program):
        program[:2] = [Announce(0, (), (ACTIVATION,)), program[0], program[1]]
        program.append(Announce(0, (GRADIENT,), ()))

    assert faults(second=never_sent) == [
        "rank 1 at position 5 exchanges a group with rank 0 that it did not announce",
        "rank 1 never exchanges what it announces to rank 0",
    ]


def test_all_faults_are_in_the_error():
    lowered = lower(build_schedule("1f1b", ScheduleSpec(pp=2, microbatches=1)))
    first, second = lowered.programs
    broken = LoweredSchedule(lowered.schedule, ((first[0], *first[2:]), second[1:]))
    with pytest.raises(DeadlockError) as error:
        check_deadlock_free(broken)
    assert str(error.value).splitlines() == [
        "schedule '1f1b' has 2 wrong transfers:",
        f"  rank 0 at position 2 frees the {A}, which it has not sent before",
        "  rank 1 at position 0 runs 1F0 before its input is received",
    ]

"""Schedule files: both ways, lenient about blanks, strict about everything else."""

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_strategies import is_legal, mutations, user_schedules

from hanayo_megatron.schedule.action import Action
from hanayo_megatron.schedule.csv_file import load_schedule, write_schedule
from hanayo_megatron.schedule.placement import Placement, linear
from hanayo_megatron.schedule.registry import build_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleError, ScheduleSpec


@pytest.fixture
def load(tmp_path):
    def load_text(text, encoding="utf-8"):
        path = tmp_path / "schedule.csv"
        path.write_bytes(text.encode(encoding))
        return load_schedule(path)

    return load_text


def assert_round_trip(schedule, path):
    write_schedule(schedule, path)
    found = load_schedule(path)
    assert found.placement == schedule.placement
    assert found.num_microbatches == schedule.num_microbatches
    assert found.orders == schedule.orders
    assert found.name == str(path)


def test_format(tmp_path):
    schedule = build_schedule("1f1b", ScheduleSpec(pp=2, microbatches=2))
    write_schedule(schedule, tmp_path / "s.csv")
    assert (tmp_path / "s.csv").read_text().splitlines() == ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"]


@settings(max_examples=100, deadline=None)
@given(user_schedules())
def test_user_schedules_come_back(tmp_path_factory, schedule):
    assert_round_trip(schedule, tmp_path_factory.getbasetemp() / "user.csv")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_mutated_files_are_refused_unless_legal(tmp_path_factory, data):
    schedule = data.draw(mutations(data.draw(user_schedules(replicas=(1,)))))
    path = tmp_path_factory.getbasetemp() / "mutated.csv"
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([map(str, order) for order in schedule.orders])
    try:
        found = load_schedule(path)
    except ScheduleError:
        found = None
    if found is None:
        assert not is_legal(schedule)
    else:
        assert is_legal(found)


def test_the_placement_is_inferred(load):
    schedule = load("0F0,2F0,2B0,0B0\n1F0,1B0\n")
    assert schedule.placement == Placement(2, (0, 1, 0))
    assert schedule.num_microbatches == 1


def test_replicas_are_inferred(load):
    schedule = load("0F0,1F1,1B1,0B0\n")
    assert schedule.placement == Placement(1, (0, 0), replicas=2)
    assert schedule.microbatches_of_replica == ((0,), (1,))


@pytest.mark.parametrize(
    "text",
    [
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
        "\ufeff0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1",
        " 0F0 ,0F1\t, 0B0,0B1\n,1F0,1B0,1F1,,1B1,,\n",
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n\n  \n\n",
        '"0F0","0F1","0B0","0B1"\n1F0,1B0,1F1,1B1\n',
        "0F0,0F1,0B0,0B1\n1F0,(1B0;1F1)OVERLAP_F_B,1B1\n",
    ],
    ids=["plain", "bom", "blanks", "lines-at-end", "quotes", "overlap"],
)
def test_stray_characters_are_accepted(load, text):
    expected = build_schedule("1f1b", ScheduleSpec(pp=2, microbatches=2))
    assert load(text).orders == expected.orders
    assert load(text).placement == expected.placement


@pytest.mark.parametrize(
    ("text", "rank", "position", "cell", "expected"),
    [
        ("0F0,0X0,0B0", 0, 1, "0X0", "stage, kind (F, B, I or W), microbatch, as in 3F0"),
        ("0F0,,F0,0B0", 0, 1, "F0", "stage, kind (F, B, I or W), microbatch, as in 3F0"),
        ("0F0,0B0,0SEND_F0", 0, 2, "0SEND_F0", "stage, kind (F, B, I or W), microbatch, as in 3F0"),
        ("0F0,-1F0,0B0", 0, 1, "-1F0", "stage, kind (F, B, I or W), microbatch, as in 3F0"),
        ("0F0,0B0,0F0", 0, 2, "0F0", "once; it is at position 0 already"),
        ("0F0,0B0\n\n1F0,1B0", 1, "-", "-", "at least one action; every rank holds a stage"),
        ("0F0,0B0\n1F0,1B0\n,,", 2, "-", "-", "at least one action; every rank holds a stage"),
        ("0F0,0B0\n1B0,1F0", 1, 0, "1B0", "1F0 before it; that is at position 1"),
        ("0F0,0B0\n2F0,2B0", "-", "-", "stage 1", "somewhere, as there is stage 2"),
        ("0F0,0B0,0F2,0B2", "-", "-", "microbatch 1", "somewhere, as there is microbatch 2"),
        ("0F0,0B0,1F1\n1F0,1B0,0F1,0B1,1B1", 0, 2, "1F1", "on rank 1, where stage 1 is placed"),
        ("1F0,0F0,0B0,1B0", 0, 0, "1F0", "0F0 done; rank 0 has it at position 1"),
        ("0F0,0B0,0F99999999999", "-", "-", "microbatch 1", "there is microbatch 99999999999"),
        (",\n,", "-", "-", "-", "actions; there are none"),
    ],
)
def test_faults_are_named_with_rank_and_position(load, text, rank, position, cell, expected):
    with pytest.raises(ScheduleError) as error:
        load(text)
    head, _, *table = str(error.value).splitlines()
    assert "schedule.csv' has " in head
    row = next(line for line in table if expected in line)
    assert row.split()[:2] == [str(rank), str(position)]
    assert row.split(maxsplit=2)[2].startswith(cell)


def test_all_faults_at_once(load):
    with pytest.raises(ScheduleError) as error:
        load("0F0,oops,0B0,0B0\n,,\n2F0,2B0,1F0\n")
    text = str(error.value)
    assert "oops" in text
    assert "once; it is at position 2 already" in text
    assert "   1         -  -" in text
    assert "1F0 done" in text or "1B0" in text


def test_files_that_cannot_be_read(load, tmp_path):
    with pytest.raises(ScheduleError, match=r"nowhere\.csv' cannot be read: .*No such file"):
        load_schedule(tmp_path / "nowhere.csv")
    with pytest.raises(ScheduleError, match="cannot be read: 'utf-8' codec"):
        load("0F0,0B0", encoding="utf-16")
    with pytest.raises(ScheduleError, match="is empty; expected one row a rank"):
        load("\n  \n")


def test_what_a_file_cannot_say(tmp_path):
    one = build_schedule("chimera", ScheduleSpec(pp=2, microbatches=1))
    with pytest.raises(ScheduleError, match=r"'chimera' cannot be written .* replicas \[1\] no"):
        write_schedule(one, tmp_path / "s.csv")
    order = (Action.parse("0F0"), Action.parse("0B0"))
    idle = Schedule("idle", Placement(2, (0,)), 1, (order, ()))
    with pytest.raises(ScheduleError, match=r"'idle' cannot be written .* ranks \[1\] have no"):
        write_schedule(idle, tmp_path / "s.csv")


def test_a_file_is_a_schedule_by_name(tmp_path):
    path = str(tmp_path / "mine.csv")
    write_schedule(build_schedule("hanayo", ScheduleSpec(pp=2, microbatches=3)), path)
    schedule = build_schedule(path, ScheduleSpec(pp=2, microbatches=3))
    assert schedule.name == path
    assert schedule.num_microbatches == 3
    with pytest.raises(ScheduleError, match=r"mine\.csv' is for 3 microbatches, asked for are 8"):
        build_schedule(path, ScheduleSpec(pp=2, microbatches=8))
    with pytest.raises(ScheduleError, match=r"mine\.csv' is for 2 ranks, asked for are 4"):
        build_schedule(path, ScheduleSpec(pp=4, microbatches=3))
    with pytest.raises(ScheduleError, match=r"holds 2 M_a on rank ., more than the memory limit"):
        build_schedule(path, ScheduleSpec(pp=2, microbatches=3, memory_limit=1.5))


def test_linear_is_not_taken_for_replicas(load):
    schedule = load("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    assert schedule.placement == linear(2)

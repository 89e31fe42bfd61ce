"""Flags for what surrounds the steps."""

import argparse

import pytest

from hanayo_megatron import flags
from hanayo_megatron.megatron.job_options import JobOptions, add_job_arguments, job_options
from hanayo_megatron.schedule import ScheduleError


def parse(*words):
    parser = argparse.ArgumentParser()
    add_job_arguments(parser.add_argument_group("pipeline schedule"))
    return job_options(parser.parse_args(words))


def test_defaults():
    assert parse() == JobOptions(watchdog_seconds=300, timeline_steps=range(3, 4))


def test_all_flags(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = parse(
        *("--pipeline-watchdog-seconds", "0", "--pipeline-debug"),
        *("--pipeline-communicators", "group", "--pipeline-timeline", "out"),
        *("--pipeline-timeline-steps", "5-7"),
    )
    assert options == JobOptions(
        debug=True,
        communicators="group",
        timeline=tmp_path / "out",
        timeline_steps=range(5, 8),
    )


def test_a_folder_for_timelines_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ScheduleError, match=r"--pipeline-timeline .*file/in: .* cannot be made: Not"
    ):
        parse("--pipeline-timeline", str(tmp_path / "file" / "in"))


@pytest.mark.parametrize("steps", ["0", "7-5", "a-b", "3-", "-3", ""])
def test_steps_that_name_none(steps):
    with pytest.raises(ScheduleError, match="names no steps"):
        parse(f"--pipeline-timeline-steps={steps}")


def test_a_negative_time_is_refused():
    with pytest.raises(ScheduleError, match="must be at least 0, got -1"):
        parse("--pipeline-watchdog-seconds=-1")
    with pytest.raises(ScheduleError, match="must be at least 0, got nan"):
        parse("--pipeline-watchdog-seconds", "nan")


def test_each_flag_alone_installs_the_plugin():
    for flag in (flags.WATCHDOG, flags.DEBUG, flags.COMMUNICATORS, flags.TIMELINE):
        assert flags.concern_plugin([flag])

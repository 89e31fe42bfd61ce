"""Flags for what surrounds the steps of a training: watchdog, checks, communicators, timelines."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from hanayo_megatron import flags
from hanayo_megatron.schedule.schedule import ScheduleError

Communicators = Literal["pair", "group"]

_WATCHDOG_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What surrounds the steps of a training.

    Args:
        watchdog_seconds: how long a rank may be in one place of a step; 0: no watchdog.
        debug: every message carries its identity and a checksum.
        communicators: NCCL communicators, one for each pair of ranks or one for the pipeline.
        timeline: folder for timelines of measured steps; None: none are measured.
        timeline_steps: the steps to measure, counted from 1.
    """

    watchdog_seconds: float = 0.0
    debug: bool = False
    communicators: Communicators = "pair"
    timeline: Path | None = None
    timeline_steps: range = range(0)


def add_job_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the flags to the group "pipeline schedule"."""
    group.add_argument(
        flags.WATCHDOG,
        type=float,
        default=_WATCHDOG_SECONDS,
        metavar="SECONDS",
        help="End the job, saying what every rank is doing, when a rank is that long in one place "
        "of a step. Also ends the job when a rank dies, or ends before the others are through. 0 "
        "switches all of this off. "
        f"Default {_WATCHDOG_SECONDS:.0f}.",
    )
    group.add_argument(
        flags.DEBUG,
        action="store_true",
        help="Send identity and checksum with every tensor between stages and check them on "
        "arrival. Slow: the host waits for every message.",
    )
    group.add_argument(
        flags.COMMUNICATORS,
        choices=get_args(Communicators),
        default="pair",
        help="NCCL communicators: one for each pair of ranks that exchange tensors, so that a slow "
        "neighbour holds up nothing for the other one; or one for the whole pipeline, which needs "
        "less GPU memory. Default pair.",
    )
    group.add_argument(
        flags.TIMELINE,
        type=Path,
        metavar="DIR",
        help="Measure some steps and write their timelines into DIR: pictures beside the planned "
        "step, Chrome traces, and the data.",
    )
    group.add_argument(
        flags.TIMELINE_STEPS,
        default="3-3",
        metavar="A-B",
        help="Training steps to measure, counted from the start of this run. Default 3-3.",
    )


def job_options(args: argparse.Namespace) -> JobOptions:
    """Read the flags, and make the folder that they name.

    Raises ScheduleError naming a value that is not legal.
    """
    if not args.pipeline_watchdog_seconds >= 0:  # nan is no number of seconds
        raise ScheduleError(
            f"{flags.WATCHDOG} must be at least 0, got {args.pipeline_watchdog_seconds}"
        )
    timeline = args.pipeline_timeline and args.pipeline_timeline.absolute()
    if timeline is not None:
        try:
            timeline.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ScheduleError(
                f"{flags.TIMELINE} {timeline}: the folder cannot be made: {error.strerror}"
            ) from None
    return JobOptions(
        watchdog_seconds=args.pipeline_watchdog_seconds,
        debug=args.pipeline_debug,
        communicators=args.pipeline_communicators,
        timeline=timeline,
        timeline_steps=_steps(args.pipeline_timeline_steps),
    )


def _steps(text: str) -> range:
    first, dash, last = text.partition("-")
    last = last if dash else first
    if first.isdecimal() and last.isdecimal():
        steps = range(int(first), int(last) + 1)
        if steps and steps.start >= 1:
            return steps
    raise ScheduleError(
        f"{flags.TIMELINE_STEPS} {text!r} names no steps; expected one as in 5, or a first and a "
        "last one as in 5-7, counted from 1"
    )

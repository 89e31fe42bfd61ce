"""Options that commands share, and the schedule specs that they make."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import Any

from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.csv_file import load_schedule
from hanayo_megatron.schedule.schedule import ScheduleSpec
from hanayo_megatron.simulate.costs_file import load_costs


def add_common(command: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Options of every command that builds schedules; ``several`` waves and chunks to compare."""
    many: dict[str, Any] = {"nargs": "+", "type": int} if several else {"type": int}
    add = command.add_argument
    add("--pp", type=int, metavar="P", help="ranks of the pipeline")
    add("--microbatches", type=int, metavar="M", help="microbatches of a step")
    for names, default, metavar, meaning in (
        (("--waves", "--num-waves"), 1, "W", "for wave schedules"),
        (("--chunks", "--num-chunks"), 2, "V", "for looped schedules"),
    ):
        default = [default] if several else default
        add(*names, **many, default=default, metavar=metavar, help=meaning)
    times = (
        ("forward", "T_F, of a rank's share of the model and one microbatch (1)"),
        ("backward", "T_B, likewise (the sum of the next two)"),
        ("input", "T_I, the backward for the input only (half of T_B, or 1)"),
        ("weight", "T_W, the backward for the weights only (half of T_B, or 1)"),
        ("p2p", "T_C, one transfer (0)"),
    )
    for name, meaning in times:
        add(f"--{name}-time", type=_amount, metavar="TIME", help=meaning)
    add_memory_limit(command)
    add("--costs", metavar="FILE.json", help="fields of Costs; the options above win")
    add_module(command)
    add_json(command)


def add_memory_limit(command: argparse.ArgumentParser) -> None:
    """The option for what a schedule may hold."""
    command.add_argument(
        "--memory-limit", type=_amount, metavar="M_A", help="most activations of a rank, in M_a"
    )


def add_module(command: argparse.ArgumentParser) -> None:
    """The option for schedules of the user's own."""
    command.add_argument(
        "--pipeline-schedule-module", metavar="MODULE", help="module that registers own schedules"
    )


def add_json(command: argparse.ArgumentParser) -> None:
    """The option for output for programs."""
    command.add_argument("--json", action="store_true", help="print JSON")


def spec_from(
    args: argparse.Namespace, name: str, *, waves: int | None = None, chunks: int | None = None
) -> ScheduleSpec:
    """What the options ask of a schedule; a CSV file says itself for how many ranks it is.

    Raises ValueError for options that are missing or contradict each other, OSError for a costs
    file that cannot be read.
    """
    pp, microbatches = args.pp, args.microbatches
    if name.endswith(".csv") and (pp is None or microbatches is None):
        schedule = load_schedule(name)
        pp = pp or schedule.placement.num_ranks
        microbatches = microbatches or schedule.num_microbatches
    for option, value in (("--pp", pp), ("--microbatches", microbatches)):
        if value is None:
            raise ValueError(f"{option} is missing")
    return ScheduleSpec(
        pp=pp,
        microbatches=microbatches,
        waves=args.waves if waves is None else waves,
        chunks=args.chunks if chunks is None else chunks,
        costs=_costs(args),
        memory_limit=args.memory_limit,
    )


def _costs(args: argparse.Namespace) -> Costs:
    """The costs file, with the options on top."""
    costs = load_costs(args.costs) if args.costs else Costs()
    given = {
        "forward": args.forward_time,
        "backward": args.backward_time,
        "input": args.input_time,
        "weight": args.weight_time,
        "transfer": args.p2p_time,
    }
    if args.backward_time is not None and not args.costs:
        given |= _parts_of_backward(args.backward_time, args.input_time, args.weight_time)
    return replace(costs, **{name: time for name, time in given.items() if time is not None})


def _parts_of_backward(
    backward: float, input: float | None, weight: float | None
) -> dict[str, float]:
    """T_I and T_W that add up to T_B, where they are not given: halves, or the rest."""
    if input is None:
        input = backward / 2 if weight is None else backward - weight
    if weight is None:
        weight = backward - input
    if min(input, weight) < 0:
        raise ValueError(
            f"--backward-time {backward:g} is less than its part given by --input-time or "
            "--weight-time"
        )
    return {"input": input, "weight": weight}


def _amount(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of at least 0")
    return value

"""The ``hanayo-megatron`` command: schedules simulated, compared, drawn, checked and exported."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NoReturn

from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.registry import (
    load_schedule_module,
    schedule_aliases,
    schedule_help,
    schedule_names,
)
from hanayo_megatron.schedule.schedule import ScheduleError, ScheduleSpec
from hanayo_megatron.simulate.costs_file import load_costs
from hanayo_megatron.simulate.report import Report, report_by_name
from hanayo_megatron.simulate.tables import by_makespan, compare, describe, table, title

_BASELINE = "1f1b"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Errors are one line on stderr and exit code 2."""
    try:
        args = _parser().parse_args(arguments)
        if args.pipeline_schedule_module:
            load_schedule_module(args.pipeline_schedule_module)
        code = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read the output, such as head, has enough. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        _fail(error)


def _simulate(args: argparse.Namespace) -> int:
    report = report_by_name(args.schedule, _spec(args))
    if args.json:
        print(json.dumps(report.as_dict()))
    else:
        print(describe(report, memory_limit=args.memory_limit))
    return 0


def _compare(args: argparse.Namespace) -> int:
    names = args.schedule or schedule_names()
    reports: dict[Any, Report] = {}
    for name in dict.fromkeys([*names, _BASELINE]):
        for waves, chunks in product(args.waves, args.chunks):
            try:
                report = report_by_name(name, _spec(args, waves=waves, chunks=chunks))
            except ScheduleError as error:
                if name in (args.schedule or ()):
                    raise
                print(f"left out: {name}: {_one_line(error)}", file=sys.stderr)
                break
            # Schedules that know no waves or chunks come out the same for all of them.
            schedule = report.schedule
            reports[schedule.name, schedule.placement] = report
    if args.json:
        print(json.dumps([r.as_dict() for r in sorted(reports.values(), key=by_makespan)]))
    else:
        print(compare(list(reports.values()), memory_limit=args.memory_limit))
    return 0


def _plot(args: argparse.Namespace) -> int:
    # Drawing needs matplotlib, which takes a second to import.
    from hanayo_megatron.timeline.event import load_timeline, simulated_timeline
    from hanayo_megatron.timeline.picture import draw

    spec = _spec(args) if args.schedule else None
    # Costs in seconds, as measured ones are, put plan and measurement on one scale.
    unit = "s" if args.measured and args.costs else ""
    timelines = [
        simulated_timeline(report.simulation, title=title(report), unit=unit)
        for report in (report_by_name(name, spec) for name in args.schedule)
    ]
    timelines += map(load_timeline, args.measured)
    if not timelines:
        raise ValueError("nothing to plot: give --schedule, --measured or both")
    for output in args.output:
        draw(timelines, output)
        print(output)
    return 0


def _export(args: argparse.Namespace) -> int:
    report = report_by_name(args.schedule, _spec(args))
    if args.output.endswith(".json"):
        from hanayo_megatron.timeline.chrome_trace import save_chrome_trace
        from hanayo_megatron.timeline.event import simulated_timeline

        save_chrome_trace([simulated_timeline(report.simulation, title=title(report))], args.output)
    elif args.output.endswith(".csv"):
        raise NotImplementedError
    else:
        raise ValueError(
            f"cannot export to {args.output}: the name must end in .csv (torch.distributed."
            "pipelining) or .json (Chrome trace)"
        )
    print(args.output)
    return 0


def _list(args: argparse.Namespace) -> int:
    entries = [
        {
            "schedule": name,
            "aliases": schedule_aliases(name),
            "summary": schedule_help(name).partition("\n")[0],
        }
        for name in schedule_names()
    ]
    if args.json:
        print(json.dumps(entries))
    else:
        rows = [[e["schedule"], ", ".join(e["aliases"]), e["summary"]] for e in entries]
        print("\n".join(table(["schedule", "aliases", "summary"], rows, left=None)))
    return 0


def _spec(
    args: argparse.Namespace, *, waves: int | None = None, chunks: int | None = None
) -> ScheduleSpec:
    for name in ("pp", "microbatches"):
        if getattr(args, name) is None:
            raise ValueError(f"--{name} is missing")
    return ScheduleSpec(
        pp=args.pp,
        microbatches=args.microbatches,
        waves=waves or args.waves,
        chunks=chunks or args.chunks,
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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(message)


def _fail(error: object) -> NoReturn:
    print(f"hanayo-megatron: {_one_line(error)}", file=sys.stderr)
    raise SystemExit(2)


def _one_line(error: object) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return "; ".join(line for line in lines if line)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="hanayo-megatron", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = _command(commands, "simulate", _simulate, "time and memory of one schedule")
    command.add_argument("--schedule", required=True, metavar="NAME", help=_SCHEDULE_HELP)
    _add_common(command)

    command = _command(
        commands, "compare", _compare, "a table of several schedules, the shortest first"
    )
    command.add_argument(
        "--schedule",
        nargs="+",
        metavar="NAME",
        help=f"names, see list; all if not given; {_BASELINE} is always among them",
    )
    _add_common(command, several=True)

    command = _command(commands, "plot", _plot, "pictures of schedules and of measured steps")
    command.add_argument("--schedule", nargs="+", default=[], metavar="NAME", help=_SCHEDULE_HELP)
    _add_common(command)
    command.add_argument(
        "--measured", nargs="+", default=[], metavar="FILE", help="timelines of real steps"
    )
    command.add_argument(
        "--output",
        nargs="+",
        default=["timeline.svg", "timeline.png"],
        metavar="FILE",
        help="names ending in .svg or .png; both formats if not given",
    )

    command = _command(commands, "export", _export, "a schedule as a file for other tools")
    command.add_argument("--schedule", required=True, metavar="NAME", help=_SCHEDULE_HELP)
    _add_common(command)
    command.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="name ending in .csv (torch.distributed.pipelining) or .json (Chrome trace)",
    )

    command = _command(commands, "list", _list, "all schedules")
    _add_module(command)
    _add_json(command)
    return parser


_SCHEDULE_HELP = "name of a schedule, see list"


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
    command.set_defaults(run=run)
    return command


def _add_common(command: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Options of every command that builds schedules; ``several`` waves and chunks to compare."""
    many: dict[str, Any] = {"nargs": "+", "type": int} if several else {"type": int}
    add = command.add_argument
    add("--pp", type=int, metavar="P", help="ranks of the pipeline")
    add("--microbatches", type=int, metavar="M", help="microbatches of a step")
    add("--waves", **many, default=[1] if several else 1, metavar="W", help="for wave schedules")
    add("--chunks", **many, default=[2] if several else 2, metavar="V", help="for looped schedules")
    times = (
        ("forward", "T_F, of a rank's share of the model and one microbatch (1)"),
        ("backward", "T_B, likewise (the sum of the next two)"),
        ("input", "T_I, the backward for the input only (half of T_B, or 1)"),
        ("weight", "T_W, the backward for the weights only (half of T_B, or 1)"),
        ("p2p", "T_C, one transfer (0)"),
    )
    for name, meaning in times:
        add(f"--{name}-time", type=_amount, metavar="TIME", help=meaning)
    add("--memory-limit", type=_amount, metavar="M_A", help="most activations of a rank, in M_a")
    add("--costs", metavar="FILE.json", help="fields of Costs; the options above win")
    _add_module(command)
    _add_json(command)


def _add_module(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--pipeline-schedule-module", metavar="MODULE", help="module that registers own schedules"
    )


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def _amount(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of at least 0")
    return value


if __name__ == "__main__":
    raise SystemExit(main())

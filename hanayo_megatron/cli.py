"""The ``hanayo-megatron`` command: schedules simulated, compared, drawn, checked and exported."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NoReturn

from hanayo_megatron.cli_options import (
    add_common,
    add_json,
    add_memory_limit,
    add_module,
    spec_from,
)
from hanayo_megatron.lowering.announced import announce_shapes
from hanayo_megatron.lowering.deadlock import check_deadlock_free
from hanayo_megatron.lowering.rendezvous import Communicator
from hanayo_megatron.schedule.csv_file import load_schedule, write_schedule
from hanayo_megatron.schedule.memory import check_memory_limit, peak_activations
from hanayo_megatron.schedule.registry import (
    build_schedule,
    canonical_name,
    load_schedule_module,
    schedule_aliases,
    schedule_help,
    schedule_names,
)
from hanayo_megatron.schedule.schedule import ScheduleError
from hanayo_megatron.simulate.prefetch import lower_with_least_buffers
from hanayo_megatron.simulate.report import Report, report_by_name
from hanayo_megatron.simulate.tables import by_makespan, compare, describe, table, title

_BASELINE = "1f1b"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Errors are a text on stderr and exit code 2."""
    try:
        args = _parser().parse_args(arguments)
        if getattr(args, "pipeline_schedule_module", None):
            sys.path.insert(0, os.getcwd())  # as `python -m` does
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
    report = _report(args, args.schedule)
    if args.json:
        print(json.dumps(report.as_dict()))
    else:
        print(describe(report))
    return 0


def _compare(args: argparse.Namespace) -> int:
    names = map(canonical_name, args.schedule or schedule_names())
    reports: dict[Any, Report] = {}
    for name in dict.fromkeys([*names, _BASELINE]):
        for waves, chunks in product(args.waves, args.chunks):
            try:
                report = _report(args, name, waves=waves, chunks=chunks)
            except ScheduleError as error:
                print(f"left out: {_one_line(error)}", file=sys.stderr)
                break
            # Schedules that know no waves or chunks come out the same for all of them.
            reports[name, report.schedule.placement] = report
    if not reports:
        raise ValueError("no schedule is left to compare")
    if args.json:
        print(json.dumps([r.as_dict() for r in sorted(reports.values(), key=by_makespan)]))
    else:
        print(compare(list(reports.values())))
    return 0


def _plot(args: argparse.Namespace) -> int:
    # Drawing needs matplotlib, which takes a second to import.
    from hanayo_megatron.timeline.event import load_timeline, simulated_timeline
    from hanayo_megatron.timeline.picture import draw

    # Costs in seconds, as measured ones are, put plan and measurement on one scale.
    unit = "s" if args.measured and args.costs else ""
    timelines = [
        simulated_timeline(report.simulation, title=title(report), unit=unit)
        for report in (_report(args, name) for name in args.schedule)
    ]
    timelines += map(load_timeline, args.measured)
    if not timelines:
        raise ValueError("nothing to plot: give --schedule, --measured or both")
    for output in args.output:
        draw(timelines, output)
        print(output)
    return 0


def _verify(args: argparse.Namespace) -> int:
    with open(args.file, "rb"):  # a file that cannot be read is another error than a wrong one
        pass
    try:
        schedule = load_schedule(args.file)
        check_memory_limit(schedule, args.memory_limit)
        lowered = lower_with_least_buffers(schedule)
        for communicator in Communicator:
            for lists in (lowered, announce_shapes(lowered, communicator)):
                check_deadlock_free(lists, communicator=communicator)
    except ScheduleError as error:
        print(json.dumps({"file": args.file, "faults": str(error)}) if args.json else error)
        return 1
    placement, most = schedule.placement, max(peak_activations(schedule))
    if args.json:
        print(json.dumps({"file": args.file, "faults": None}))
    else:
        print(
            f"{args.file} is right: {placement.num_ranks} ranks, {schedule.num_microbatches} "
            f"microbatches, {placement.model_stages} stages, {placement.replicas} replicas; "
            f"at most {most:g} M_a of activations; its transfers cannot deadlock"
        )
    return 0


def _export(args: argparse.Namespace) -> int:
    if args.output.endswith(".csv"):
        write_schedule(build_schedule(args.schedule, spec_from(args, args.schedule)), args.output)
    elif args.output.endswith(".json"):
        from hanayo_megatron.timeline.chrome_trace import save_chrome_trace
        from hanayo_megatron.timeline.event import simulated_timeline

        report = _report(args, args.schedule)
        save_chrome_trace([simulated_timeline(report.simulation, title=title(report))], args.output)
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


def _report(
    args: argparse.Namespace, name: str, *, waves: int | None = None, chunks: int | None = None
) -> Report:
    return report_by_name(name, spec_from(args, name, waves=waves, chunks=chunks))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(message)


def _fail(error: object) -> NoReturn:
    print(f"hanayo-megatron: {error}", file=sys.stderr)
    raise SystemExit(2)


def _one_line(error: object) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return "; ".join(line for line in lines if line)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="hanayo-megatron", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = _command(commands, "simulate", _simulate, "time and memory of one schedule")
    command.add_argument("--schedule", required=True, metavar="NAME", help=_SCHEDULE_HELP)
    add_common(command)

    command = _command(
        commands, "compare", _compare, "a table of several schedules, the shortest first"
    )
    command.add_argument(
        "--schedule",
        nargs="+",
        metavar="NAME",
        help=f"names, see list, or CSV files; all if not given; {_BASELINE} is always added",
    )
    add_common(command, several=True)

    command = _command(commands, "plot", _plot, "pictures of schedules and of measured steps")
    command.add_argument("--schedule", nargs="+", default=[], metavar="NAME", help=_SCHEDULE_HELP)
    add_common(command)
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

    command = _command(commands, "verify", _verify, "whether a schedule in a CSV file is right")
    command.add_argument("file", metavar="FILE", help="as torch.distributed.pipelining writes it")
    add_memory_limit(command)
    add_json(command)

    command = _command(commands, "export", _export, "a schedule as a file for other tools")
    command.add_argument("--schedule", required=True, metavar="NAME", help=_SCHEDULE_HELP)
    add_common(command)
    command.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="name ending in .csv (torch.distributed.pipelining) or .json (Chrome trace)",
    )

    command = _command(commands, "list", _list, "all schedules")
    add_module(command)
    add_json(command)
    return parser


_SCHEDULE_HELP = "name of a schedule, see list, or a CSV file"


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
    command.set_defaults(run=run)
    return command


if __name__ == "__main__":
    raise SystemExit(main())

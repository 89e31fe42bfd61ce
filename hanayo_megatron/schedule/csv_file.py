"""Schedules in files: the compute-only CSV of torch.distributed.pipelining.

One row a rank, one cell an action, such as ``3F0``; empty cells mean nothing, a cell such as
``(0F1;3B0)OVERLAP_F_B`` its actions in turn. The file holds neither placement nor number of
microbatches; both are inferred: a stage is on the rank that runs it. torch knows no replicas; here
stages 0..S-1 and S..2S-1 are two replicas if they share no microbatch.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.collector import collector_paused
from hanayo_megatron.schedule.faults import Fault, faults_error
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.schedule.schedule import Schedule, ScheduleError
from hanayo_megatron.schedule.verify import find_faults

_OVERLAP = re.compile(r"\((.*)\)\s*OVERLAP_F_B")
_UNREADABLE = Action(-1, Kind.F, -1)  # holds the place of a cell, so that positions stay right


def write_schedule(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule so that ``load_schedule`` and torch's ``_load_csv`` read it.

    Raises ScheduleError for what a file cannot say: ranks without actions, replicas without
    microbatches.
    """
    idle = [rank for rank, order in enumerate(schedule.orders) if not order]
    unused = [r for r, share in enumerate(schedule.microbatches_of_replica) if not share]
    if idle or unused:
        what = f"ranks {idle} have no actions" if idle else f"replicas {unused} no microbatches"
        raise ScheduleError(
            f"schedule {schedule.name!r} cannot be written as CSV, which holds actions only: {what}"
        )
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(map(str, order) for order in schedule.orders)


def load_schedule(path: str | Path) -> Schedule:
    """Read a schedule for training and verify it; its name is the path.

    Blanks around cells, empty cells, blank lines at the end and a byte-order mark are accepted.
    Raises ScheduleError with a table of all faults: cells that are no action, empty rows, and
    everything that ``find_faults`` knows. Positions count the actions of a row from 0.
    """
    with collector_paused():
        faults: list[Fault] = []
        orders = tuple(_read_row(row, rank, faults) for rank, row in enumerate(_rows(path)))
        gaps = _gaps(orders)
        if not gaps:
            schedule = Schedule(str(path), *_infer(orders), orders)
            gaps = [f for f in find_faults(schedule) if f.cell != str(_UNREADABLE)]
        faults += gaps
    if faults:
        raise faults_error(f"schedule file {str(path)!r}", faults)
    return schedule


def _rows(path: str | Path) -> list[list[str]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScheduleError(f"schedule file {str(path)!r} cannot be read: {error}") from error
    while rows and not any(cell.strip() for cell in rows[-1]) and len(rows[-1]) < 2:
        rows.pop()
    if not rows:
        raise ScheduleError(f"schedule file {str(path)!r} is empty; expected one row a rank")
    return rows


def _read_row(row: list[str], rank: int, faults: list[Fault]) -> tuple[Action, ...]:
    order: list[Action] = []
    for cell in map(str.strip, row):
        if not cell:
            continue
        overlap = _OVERLAP.fullmatch(cell)
        for part in overlap[1].split(";") if overlap else (cell,):
            try:
                order.append(Action.parse(part))
            except ValueError:
                expected = "stage, kind (F, B, I or W), microbatch, as in 3F0"
                faults.append(Fault(rank, len(order), cell, expected))
                order.append(_UNREADABLE)
    return tuple(order)


def _gaps(orders: tuple[tuple[Action, ...], ...]) -> list[Fault]:
    """Stages or microbatches that appear nowhere: then there is no placement to infer."""
    faults = []
    for field, name in ((0, "stage"), (2, "microbatch")):
        seen = {action[field] for order in orders for action in order} - {-1}
        if not seen:
            return [Fault(None, None, "", "actions; there are none")]
        absent = (number for number in range(max(seen)) if number not in seen)
        faults += (
            Fault(None, None, f"{name} {number}", f"somewhere, as there is {name} {max(seen)}")
            for number in islice(absent, 20)
        )
    return faults


def _infer(orders: tuple[tuple[Action, ...], ...]) -> tuple[Placement, int]:
    """Placement (a stage is where most of its actions are) and number of microbatches."""
    ranks_of: dict[int, Counter[int]] = defaultdict(Counter)
    microbatches_of: dict[int, set[int]] = defaultdict(set)
    for rank, order in enumerate(orders):
        for stage, _, microbatch in order:
            if stage >= 0:
                ranks_of[stage][rank] += 1
                microbatches_of[stage].add(microbatch)
    num_stages = len(ranks_of)
    rank_of = tuple(ranks_of[stage].most_common(1)[0][0] for stage in range(num_stages))
    num_microbatches = 1 + max(map(max, microbatches_of.values()))

    replicas = 1
    for count in range(2, num_stages + 1):
        depth = num_stages // count
        if num_stages % count == 0:
            shares = [
                set().union(*(microbatches_of[s] for s in range(r * depth, (r + 1) * depth)))
                for r in range(count)
            ]
            if sum(map(len, shares)) == num_microbatches:
                replicas = count
                break
    return Placement(len(orders), rank_of, replicas), num_microbatches

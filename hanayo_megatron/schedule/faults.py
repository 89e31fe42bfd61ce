"""What is wrong with a schedule, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hanayo_megatron.schedule.schedule import ScheduleError

_MOST_ROWS = 200


class Fault(NamedTuple):
    """One thing that is wrong.

    ``rank`` and ``position`` are those of the cell in the schedule, ``None`` where there is none:
    an action that is missing has a rank but no position.
    """

    rank: int | None
    position: int | None
    cell: str
    expected: str


def faults_error(what: str, faults: Sequence[Fault]) -> ScheduleError:
    """An error with all faults of ``what`` in one table."""
    faults = sorted(faults, key=by_place)
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    return ScheduleError(f"{what} has {count}:\n{fault_table(faults)}")


def by_place(fault: Fault) -> tuple[bool, int, bool, int]:
    """Sorts faults by rank and position; those without one last."""
    rank, position = fault.rank, fault.position
    return rank is None, rank or 0, position is None, position or 0


def fault_table(faults: Sequence[Fault]) -> str:
    """One line a fault: rank, position, cell, what was expected; 200 lines at most."""
    rows = [("rank", "position", "cell", "expected")]
    for rank, position, cell, expected in faults[:_MOST_ROWS]:
        where = ["-" if number is None else str(number) for number in (rank, position)]
        rows.append((*where, cell or "-", expected))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{rank:>{widths[0]}}  {position:>{widths[1]}}  {cell:<{widths[2]}}  {expected}"
        for rank, position, cell, expected in rows
    ]
    if len(faults) > _MOST_ROWS:
        lines.append(f"... and {len(faults) - _MOST_ROWS} more")
    return "\n".join(lines)

"""How long schedules take to build, verify, lower and simulate, on one core.

Run as ``python benchmarks/schedule_speed.py``. Times are CPU seconds of this process. The last
column is the total relative to half as many microbatches: 2 is linear.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from hanayo_megatron.schedule.registry import build_schedule
from hanayo_megatron.schedule.schedule import ScheduleSpec
from hanayo_megatron.schedule.verify import verify
from hanayo_megatron.simulate.prefetch import lower_with_least_buffers
from hanayo_megatron.simulate.simulate import simulate
from hanayo_megatron.simulate.tables import table

CASES = (
    ("zb-v", ScheduleSpec(pp=16, microbatches=64)),
    ("zb-v", ScheduleSpec(pp=16, microbatches=128)),
    ("hanayo-zb", ScheduleSpec(pp=64, waves=2, microbatches=256)),
    ("hanayo-zb", ScheduleSpec(pp=64, waves=2, microbatches=512)),
    ("hanayo-zb", ScheduleSpec(pp=64, waves=2, microbatches=1024)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="the fastest of so many runs")
    repeat = parser.parse_args().repeat
    rows, totals = [], {}
    for name, spec in CASES:
        build, schedule = timed(lambda name=name, spec=spec: build_schedule(name, spec), repeat)
        check, _ = timed(lambda schedule=schedule: verify(schedule), repeat)
        lowering, lowered = timed(
            lambda schedule=schedule: lower_with_least_buffers(schedule), repeat
        )
        run, simulation = timed(lambda lowered=lowered: simulate(lowered), repeat)
        total = totals[name, spec.microbatches] = build + check + lowering + run
        half = totals.get((name, spec.microbatches // 2))
        rows.append(
            [
                f"{name} P={spec.pp} W={spec.waves} M={spec.microbatches}",
                f"{sum(map(len, schedule.orders)):,}",
                *(f"{seconds:.2f}" for seconds in (build, check, lowering, run, total)),
                f"{simulation.bubble_ratio:.4f}",
                f"{total / half:.2f}" if half else "",
            ]
        )
    headers = ["schedule", "actions", "build", "verify", "lower", "simulate", "total"]
    print("\n".join(table([*headers, "bubble", "to half M"], rows)))


def timed[T](work: Callable[[], T], repeat: int) -> tuple[float, T]:
    """Fastest CPU time of some runs, and the last result."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    return best, result


if __name__ == "__main__":
    main()

"""How far ahead of its use a tensor is received: as far as it saves time, and no further."""

from __future__ import annotations

from dataclasses import replace

from hanayo_megatron.lowering.lower import LoweredSchedule, lower
from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.schedule import Schedule
from hanayo_megatron.simulate.simulate import simulate
from hanayo_megatron.simulate.transfer_buffers import peak_buffers

_FEWEST = 2
"""One buffer is read while another one fills."""

_STEADY = 16
"""Microbatches of the steady state that are looked at; P fill the pipeline before."""

_SLOW_TRANSFER = 0.25
"""Of the shortest forward. No network that trains well is as slow."""

_SAME_TIME = 1.001
"""Steps that differ by less take as long as each other; real ones vary by more."""


def lower_with_least_buffers(schedule: Schedule, costs: Costs | None = None) -> LoweredSchedule:
    """Lower a schedule for as few receive buffers a rank as cost no time.

    The simulator tries one limit after another on the schedule's first P + 16 microbatches, with
    transfers that take a quarter of the shortest forward or what the costs say, whichever is
    longer. The first limit with which they take as long as without, to a thousandth, is taken.
    Raises as ``lower`` does.
    """
    costs = costs or Costs()
    return lower(schedule, costs, receive_buffers=_least_buffers(schedule, costs))


def _least_buffers(schedule: Schedule, costs: Costs) -> int:
    sample = _first_microbatches(schedule, schedule.placement.num_ranks + _STEADY)
    slow = _with_slow_transfers(schedule, costs)
    unlimited = lower(sample, costs)
    most = max(peak_buffers(unlimited).receive)
    if most <= _FEWEST:
        return _FEWEST
    allowed = simulate(unlimited, slow).makespan * _SAME_TIME
    for limit in range(_FEWEST, most):
        limited = lower(sample, costs, receive_buffers=limit)
        if simulate(limited, slow).makespan <= allowed:
            return limit
    return most


def _first_microbatches(schedule: Schedule, count: int) -> Schedule:
    """The same orders without the actions of later microbatches.

    Each replica keeps its part of ``count``. Nothing depends on another microbatch, so that the
    rest can still run.
    """
    if schedule.num_microbatches <= count:
        return schedule
    each = count // schedule.placement.replicas
    kept = {m for share in schedule.microbatches_of_replica for m in share[:each]}
    orders = tuple(tuple(a for a in order if a.microbatch in kept) for order in schedule.orders)
    return replace(schedule, orders=orders)


def _with_slow_transfers(schedule: Schedule, costs: Costs) -> Costs:
    shortest = min(costs.durations(schedule.placement)[Kind.F])
    least = _SLOW_TRANSFER * shortest
    return replace(
        costs,
        transfer=max(costs.transfer, least),
        link_times={link: max(time, least) for link, time in costs.link_times.items()},
    )

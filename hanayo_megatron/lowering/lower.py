"""A schedule becomes one action list per rank, by one global order of all transfers.

Why the lists cannot deadlock, even if a send ends only when its receive is posted: the plan gives
every compute its start and every transfer the end of its producer as a place in one total order.
Each rank's list holds its computes, and its transfers, in that order; a compute stands behind the
transfer it reads; a send or a receive may stand earlier among the computes than its place, never
later, and posting blocks nobody. So the smallest unfinished element can always run. A limit on
receive buffers moves transfers to later places, none of them behind the compute that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hanayo_megatron.lowering.operation import (
    Compute,
    Exchange,
    Free,
    Operation,
    SyncGradients,
    Transfer,
)
from hanayo_megatron.lowering.plan import Plan, plan_times
from hanayo_megatron.lowering.receive_window import window_openings
from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.collector import collector_paused
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.schedule import Schedule


@dataclass(frozen=True)
class LoweredSchedule:
    """A schedule with its action list per rank."""

    schedule: Schedule
    programs: tuple[tuple[Operation, ...], ...]


def lower(
    schedule: Schedule, costs: Costs | None = None, *, receive_buffers: int | None = None
) -> LoweredSchedule:
    """Add transfers, frees and gradient synchronisation to a schedule.

    Args:
        schedule: what every rank computes.
        costs: shape the global order only; any costs give a correct result, true ones a better one.
        receive_buffers: most receive buffers that a rank may have in use, at least 1; what finds
            none waits at its sender. None: no limit.

    Raises ScheduleError if the schedule's orders wait for each other.
    """
    with collector_paused():
        # A tick at least, so that a receive stands before the compute that is to hide its transfer.
        plan = plan_times(schedule, costs or Costs(), least_transfer=1)
        openings = None
        if receive_buffers is not None:
            openings = window_openings(schedule, plan, receive_buffers)
        groups = _transfer_groups(schedule, plan, openings)
        programs = tuple(
            _program(schedule, plan, rank, groups[rank]) for rank in range(len(groups))
        )
    return LoweredSchedule(schedule, programs)


@dataclass(frozen=True, slots=True)
class _Group:
    """Transfers between two ranks that start together."""

    ready: int
    transfers: list[tuple[Transfer, int]]
    """Each with its producer's position in the source rank's order."""


def _transfer_groups(
    schedule: Schedule, plan: Plan, openings: Mapping[Kind, list[int]] | None
) -> list[list[_Group]]:
    """Groups of each rank in the global order: by readiness, even pairs of ranks first.

    Ready is what was computed and finds a buffer. Opposite transfers of one pair that become ready
    together form one group. All transfers ready at one instant depend on strictly earlier computes
    only, so any common order of them is right; even pairs before odd ones lets neighbours exchange
    without waiting in a chain.
    """
    placement = schedule.placement
    rank_of, model_stages = placement.rank_of, placement.model_stages
    found: list[tuple[int, int, int, int, int, Transfer]] = []
    for rank, order in enumerate(schedule.orders):
        ends = plan.ends[rank]
        for position, (stage, kind, microbatch) in enumerate(order):
            if kind is Kind.F:
                if stage % model_stages == model_stages - 1:
                    continue
                target = stage + 1
            elif kind is Kind.W or stage % model_stages == 0:
                continue
            else:
                target, kind = stage - 1, Kind.B
            peer = rank_of[target]
            if peer == rank:
                continue
            low, high = (rank, peer) if rank < peer else (peer, rank)
            transfer = Transfer(kind, microbatch, stage, target, rank, peer)
            ready = ends[position]
            if openings is not None:
                ready = max(ready, openings[kind][target * schedule.num_microbatches + microbatch])
            found.append((ready, low % 2, low, high, position, transfer))
    found.sort()

    groups: list[list[_Group]] = [[] for _ in schedule.orders]
    last_key = None
    for ready, parity, low, high, position, transfer in found:
        key = (ready, parity, low, high)
        if key == last_key:
            groups[low][-1].transfers.append((transfer, position))
            continue
        last_key = key
        group = _Group(ready, [(transfer, position)])
        groups[low].append(group)
        groups[high].append(group)
    return groups


def _program(
    schedule: Schedule, plan: Plan, rank: int, groups: list[_Group]
) -> tuple[Operation, ...]:
    """Merge the rank's computes and transfer groups, and place frees and gradient syncs.

    Both sides of a transfer stand before the compute that the plan runs while it becomes ready, so
    a send stands right behind its producer, and its receive is posted when the sender gets there.
    """
    order, ends = schedule.orders[rank], plan.ends[rank]
    last_gradient = _last_gradient_positions(schedule, rank)
    program: list[Operation] = []
    unsent: list[Transfer] = []  # posted, to be freed one compute later
    next_compute = 0

    def compute_until(stop: int) -> None:
        nonlocal next_compute, unsent
        while next_compute < stop:
            action = order[next_compute]
            if unsent and action.kind in (Kind.B, Kind.I):
                # A backward needs its own output freed (Megatron's custom_backward insists).
                own = [t for t in unsent if _is_output_of(t, action)]
                program.extend(map(Free, own))
                unsent = [t for t in unsent if t not in own]
            program.append(Compute(action))
            program.extend(map(Free, unsent))
            unsent = []
            if last_gradient.get(action.stage) == next_compute:
                program.append(SyncGradients(action.stage))
            next_compute += 1

    for group in groups:
        stop = next_compute
        while stop < len(order) and ends[stop] <= group.ready:
            stop += 1
        sends = []
        for transfer, position in group.transfers:
            if transfer.source == rank:
                sends.append(transfer)
                stop = max(stop, position + 1)
        compute_until(stop)
        receives = tuple(t for t, _ in group.transfers if t.target == rank)
        peer = sends[0].target if sends else receives[0].source
        program.append(Exchange(peer, tuple(sends), receives))
        unsent += sends
    compute_until(len(order))
    program.extend(map(Free, unsent))
    return tuple(program)


def _is_output_of(transfer: Transfer, backward: Action) -> bool:
    """Whether the transfer carries the forward output that the backward starts from."""
    return (
        transfer.kind is Kind.F
        and transfer.source_stage == backward.stage
        and transfer.microbatch == backward.microbatch
    )


def _last_gradient_positions(schedule: Schedule, rank: int) -> dict[int, int]:
    """Position of the last action that adds to each stage's weight gradients."""
    return {
        action.stage: position
        for position, action in enumerate(schedule.orders[rank])
        if action.kind in (Kind.B, Kind.W)
    }

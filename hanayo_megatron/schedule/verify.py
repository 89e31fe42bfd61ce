"""Is a schedule complete, and can it run?"""

from __future__ import annotations

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.collector import collector_paused
from hanayo_megatron.schedule.faults import Fault, by_place, faults_error
from hanayo_megatron.schedule.memory import stage_share
from hanayo_megatron.schedule.schedule import Schedule

Positions = dict[Kind, list[int]]
"""Of each kind: position of every (stage, microbatch) in its rank's order, -1 where there is none,
at index stage · M + microbatch."""


def verify(
    schedule: Schedule, *, memory_limit: float | None = None, forward_only: bool = False
) -> None:
    """Raise ScheduleError with a table of all faults of ``find_faults``, if there are any."""
    faults = find_faults(schedule, memory_limit=memory_limit, forward_only=forward_only)
    if faults:
        raise faults_error(f"schedule {schedule.name!r}", faults)


def find_faults(
    schedule: Schedule, *, memory_limit: float | None = None, forward_only: bool = False
) -> list[Fault]:
    """Everything that is wrong with a schedule, by rank and position.

    Every microbatch goes through one replica: F, and either B or I and W, once on each stage, on
    the rank of the stage; F before its backward and I before W; no orders that wait for each other;
    no rank that holds more than ``memory_limit`` M_a. ``forward_only`` schedules need no backward.
    """
    with collector_paused():
        faults = _malformed(schedule)
        if faults:
            return faults
        positions, faults = _read_orders(schedule)
        unfit = {(fault.rank, fault.position) for fault in faults}
        faults += _incomplete(schedule, positions, forward_only)
        faults += _misplaced(schedule, positions)
        faults += _blocked(schedule, positions, unfit)
        if memory_limit is not None:
            faults += _beyond_memory(schedule, memory_limit)
    return sorted(faults, key=by_place)


def _malformed(schedule: Schedule) -> list[Fault]:
    """What is no action at all: everything else needs actions."""
    return [
        Fault(rank, position, str(action), "an Action whose kind is a Kind, as in 3F0")
        for rank, order in enumerate(schedule.orders)
        for position, action in enumerate(order)
        if type(action) is not Action or type(action[1]) is not Kind
    ]


def _read_orders(schedule: Schedule) -> tuple[Positions, list[Fault]]:
    """Position of every action, and the actions that cannot be in this schedule."""
    placement, num_microbatches = schedule.placement, schedule.num_microbatches
    rank_of, num_stages = placement.rank_of, placement.num_stages
    positions: Positions = {kind: [-1] * (num_stages * num_microbatches) for kind in Kind}
    faults = []
    if len(schedule.orders) != placement.num_ranks:
        expected = f"orders of {placement.num_ranks} ranks; there are {len(schedule.orders)}"
        faults.append(Fault(None, None, "", expected))
    for rank, order in enumerate(schedule.orders):
        if not order:
            faults.append(Fault(rank, None, "", "at least one action; every rank holds a stage"))
        for position, action in enumerate(order):
            stage, kind, microbatch = action
            if not (0 <= stage < num_stages and 0 <= microbatch < num_microbatches):
                expected = f"stages 0..{num_stages - 1}, microbatches 0..{num_microbatches - 1}"
                faults.append(Fault(rank, position, str(action), expected))
                continue
            index = stage * num_microbatches + microbatch
            if rank_of[stage] != rank:
                expected = f"on rank {rank_of[stage]}, where stage {stage} is placed"
                faults.append(Fault(rank, position, str(action), expected))
            elif positions[kind][index] >= 0:
                expected = f"once; it is at position {positions[kind][index]} already"
                faults.append(Fault(rank, position, str(action), expected))
            else:
                positions[kind][index] = position
    return positions, faults


def _incomplete(schedule: Schedule, positions: Positions, forward_only: bool) -> list[Fault]:
    """Missing actions, backwards that are both joint and split, microbatches in two replicas."""
    placement, num_microbatches = schedule.placement, schedule.num_microbatches
    depth = placement.model_stages
    forwards, backwards, inputs, weights = (positions[kind] for kind in Kind)
    faults = []

    def fault(kind: Kind, stage: int, microbatch: int, expected: str) -> None:
        position = positions[kind][stage * num_microbatches + microbatch]
        cell = str(Action(stage, kind, microbatch))
        where = position if position >= 0 else None
        faults.append(Fault(placement.rank_of[stage], where, cell, expected))

    for microbatch in range(num_microbatches):
        replica, elsewhere = _replica_of(schedule, positions, microbatch)
        for kind, stage in elsewhere:
            expected = f"nothing; microbatch {microbatch} goes through replica {replica}"
            fault(kind, stage, microbatch, expected)
        for stage in range(replica * depth, (replica + 1) * depth):
            index = stage * num_microbatches + microbatch
            if forwards[index] < 0:
                fault(Kind.F, stage, microbatch, "it once; it is missing")
            if forward_only:
                continue
            joint, of_input, of_weight = (p[index] >= 0 for p in (backwards, inputs, weights))
            if joint:
                for kind, there in ((Kind.I, of_input), (Kind.W, of_weight)):
                    if there:
                        fault(kind, stage, microbatch, "either B or I and W; B is there too")
            elif not (of_input or of_weight):
                fault(Kind.B, stage, microbatch, "it, or I and W, once; it is missing")
            elif not (of_input and of_weight):
                kind = Kind.W if of_input else Kind.I
                fault(kind, stage, microbatch, "it once; it is missing")
    return faults


def _replica_of(
    schedule: Schedule, positions: Positions, microbatch: int
) -> tuple[int, list[tuple[Kind, int]]]:
    """The replica with most of the microbatch's actions, and the actions in other replicas."""
    placement = schedule.placement
    if placement.replicas == 1:
        return 0, []
    present = [
        (kind, stage)
        for kind in Kind
        for stage in range(placement.num_stages)
        if positions[kind][stage * schedule.num_microbatches + microbatch] >= 0
    ]
    counts = [0] * placement.replicas
    for _, stage in present:
        counts[placement.replica_of(stage)] += 1
    replica = counts.index(max(counts))
    return replica, [p for p in present if placement.replica_of(p[1]) != replica]


def _misplaced(schedule: Schedule, positions: Positions) -> list[Fault]:
    """Backwards before their forward, and weight gradients before their input gradient."""
    faults = []
    for first, second in ((Kind.F, Kind.B), (Kind.F, Kind.I), (Kind.I, Kind.W)):
        for index, (before, after) in enumerate(
            zip(positions[first], positions[second], strict=True)
        ):
            if 0 <= after < before:
                stage, microbatch = divmod(index, schedule.num_microbatches)
                needed = Action(stage, first, microbatch)
                expected = f"{needed} before it; that is at position {before}"
                cell = str(Action(stage, second, microbatch))
                faults.append(Fault(schedule.placement.rank_of[stage], after, cell, expected))
    return faults


def _blocked(
    schedule: Schedule, positions: Positions, unfit: set[tuple[int | None, int | None]]
) -> list[Fault]:
    """Where every rank stands, if the orders wait for each other.

    Runs every rank as far as its inputs from other stages allow. Inputs that are missing, ``unfit``
    cells, and what is wrong within one stage are reported elsewhere and hold up nobody here.
    """
    placement, num_microbatches = schedule.placement, schedule.num_microbatches
    depth, rank_of = placement.model_stages, placement.rank_of
    forward_done = bytearray(position < 0 for position in positions[Kind.F])
    backward_done = bytearray(
        joint < 0 and split < 0
        for joint, split in zip(positions[Kind.B], positions[Kind.I], strict=True)
    )
    waiting: dict[tuple[bool, int], int] = {}  # (forward, index of the input) -> rank
    stands_at = [0] * len(schedule.orders)
    runnable = list(range(len(schedule.orders)))
    while runnable:
        rank = runnable.pop()
        order = schedule.orders[rank]
        for position in range(stands_at[rank], len(order)):
            stage, kind, microbatch = order[position]
            if kind is Kind.W or (unfit and (rank, position) in unfit):
                continue
            index = stage * num_microbatches + microbatch
            if kind is Kind.F:
                if stage % depth and not forward_done[index - num_microbatches]:
                    waiting[True, index - num_microbatches] = rank
                    break
                forward_done[index] = 1
            else:
                if stage % depth != depth - 1 and not backward_done[index + num_microbatches]:
                    waiting[False, index + num_microbatches] = rank
                    break
                backward_done[index] = 1
            if waiting:
                waiter = waiting.pop((kind is Kind.F, index), None)
                if waiter is not None:
                    runnable.append(waiter)
        else:
            position = len(order)
        stands_at[rank] = position

    faults = []
    for (forward, index), rank in waiting.items():
        stage, microbatch = divmod(index, num_microbatches)
        kind = Kind.F if forward else Kind.B if positions[Kind.B][index] >= 0 else Kind.I
        needed, source, position = Action(stage, kind, microbatch), rank_of[stage], stands_at[rank]
        expected = f"{needed} done; rank {source} has it at position {positions[kind][index]}"
        if source != rank:
            expected += f" and waits at position {stands_at[source]}"
        cell = str(schedule.orders[rank][position])
        faults.append(Fault(rank, position, cell, expected))
    return faults


def _beyond_memory(schedule: Schedule, memory_limit: float) -> list[Fault]:
    """Where each rank first holds more than the limit."""
    share = stage_share(schedule.placement)
    faults = []
    for rank, order in enumerate(schedule.orders):
        live = 0
        for position, action in enumerate(order):
            if action.kind is Kind.F:
                live += 1
                if live * share > memory_limit + 1e-6:
                    expected = f"at most {memory_limit:g} M_a held; this is {live * share:g}"
                    faults.append(Fault(rank, position, str(action), expected))
                    break
            elif action.kind is not Kind.I:
                live -= 1
    return faults

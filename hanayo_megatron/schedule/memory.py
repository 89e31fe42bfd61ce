"""Activations that ranks hold at a time."""

from __future__ import annotations

from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.schedule.schedule import Schedule, ScheduleError, ScheduleSpec


def peak_live(schedule: Schedule) -> list[int]:
    """Most activations of single stages that each rank holds.

    Held from the start of F to the end of B, or of W where the backward is split: a weight gradient
    needs the stage's input and the gradients inside it. Nothing is held if nothing has a backward.
    """
    if schedule.is_forward_only:
        return [0] * len(schedule.orders)
    peaks = []
    for order in schedule.orders:
        live = peak = 0
        for _, kind, _ in order:
            if kind is Kind.F:
                live += 1
                if live > peak:
                    peak = live
            elif kind is not Kind.I:
                live -= 1
        peaks.append(peak)
    return peaks


def peak_activations(schedule: Schedule) -> list[float]:
    """The same in M_a, the activations of one rank's share of the model for one microbatch."""
    share = stage_share(schedule.placement)
    return [peak * share for peak in peak_live(schedule)]


def live_limit(
    name: str, spec: ScheduleSpec, placement: Placement, *, own: float, least: float
) -> int:
    """Activations of single stages a rank may hold: the spec's limit, else the schedule's own.

    Raises ScheduleError if the limit is below ``least``, in M_a, without which nothing can run.
    """
    limit = own if spec.memory_limit is None else spec.memory_limit
    if limit < least:
        raise ScheduleError(
            f"schedule {name!r} cannot run within a memory limit of {limit:g} M_a; "
            f"it needs at least {least:g} M_a"
        )
    return int(limit / stage_share(placement) + 1e-6)


def check_memory_limit(schedule: Schedule, memory_limit: float | None) -> None:
    """Raise ScheduleError, naming the rank, if a rank holds more than the limit, in M_a."""
    if memory_limit is None:
        return
    peaks = peak_activations(schedule)
    most = max(peaks)
    if most > memory_limit + 1e-6:
        raise ScheduleError(
            f"schedule {schedule.name!r} holds {most:g} M_a on rank {peaks.index(most)}, more than "
            f"the memory limit of {memory_limit:g} M_a; allow at least {most:g}, or take a "
            "schedule that adapts: hanayo, hanayo-zb, zb-h1, zb-v, v-half, v-min"
        )


def stage_share(placement: Placement) -> float:
    """M_a that one stage holds for one microbatch."""
    return placement.num_ranks / placement.model_stages

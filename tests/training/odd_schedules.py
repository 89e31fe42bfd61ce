"""Schedules as a user might register them, each odd in another way."""

import random

from hanayo_megatron.schedule import (
    Action,
    Kind,
    Placement,
    Schedule,
    ScheduleSpec,
    register_schedule,
)
from hanayo_megatron.schedule.placement import linear, looped


@register_schedule("test-reversed")
def reversed_backwards(spec: ScheduleSpec) -> Schedule:
    """All forwards, then all backwards from the last microbatch to the first."""
    microbatches = range(spec.microbatches)
    orders = tuple(
        tuple(Action(rank, Kind.F, m) for m in microbatches)
        + tuple(Action(rank, Kind.B, m) for m in reversed(microbatches))
        for rank in range(spec.pp)
    )
    return Schedule("test-reversed", linear(spec.pp), spec.microbatches, orders)


@register_schedule("test-shuffled")
def shuffled(spec: ScheduleSpec) -> Schedule:
    """Any ready action next, forwards and backwards of any microbatch, two chunks a rank."""
    return _random_order("test-shuffled", looped(spec.pp, 2), spec.microbatches)


@register_schedule("test-non-neighbours")
def non_neighbours(spec: ScheduleSpec) -> Schedule:
    """Consecutive stages on ranks far apart; first and last stage in the middle of the ranks."""
    half = [*range(2, spec.pp), *range(2)][::-1]
    placement = Placement(spec.pp, tuple(half + half[::2] + half[1::2]))
    return _random_order("test-non-neighbours", placement, spec.microbatches)


@register_schedule("test-moved")
def moved(spec: ScheduleSpec) -> Schedule:
    """One stage a rank, but the first stage on the last rank."""
    placement = Placement(spec.pp, tuple((rank - 1) % spec.pp for rank in range(spec.pp)))
    return _random_order("test-moved", placement, spec.microbatches)


def _random_order(name: str, placement: Placement, num_microbatches: int) -> Schedule:
    """A legal order found by taking ready actions at random."""
    generator = random.Random(5)
    last = placement.num_stages - 1
    ready = [Action(0, Kind.F, m) for m in range(num_microbatches)]
    orders: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    while ready:
        action = ready.pop(generator.randrange(len(ready)))
        stage, kind, microbatch = action
        orders[placement.rank_of[stage]].append(action)
        if kind is Kind.F:
            follower = (stage, Kind.B) if stage == last else (stage + 1, Kind.F)
        elif stage > 0:
            follower = (stage - 1, Kind.B)
        else:
            continue
        ready.append(Action(*follower, microbatch))
    return Schedule(name, placement, num_microbatches, tuple(map(tuple, orders)))

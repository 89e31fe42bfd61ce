"""No schedule of the library, and no legal schedule of a user, is lowered to lists that block."""

import random
from itertools import product

import pytest
from lowering.random_schedules import random_schedule

from hanayo_megatron.lowering.announced import announce_shapes
from hanayo_megatron.lowering.deadlock import check_deadlock_free
from hanayo_megatron.lowering.lower import lower
from hanayo_megatron.lowering.rendezvous import Communicator
from hanayo_megatron.schedule import Costs, ScheduleError, ScheduleSpec
from hanayo_megatron.schedule.registry import build_schedule, schedule_names
from hanayo_megatron.simulate.transfer_buffers import peak_buffers

SLOW_LINKS = Costs(forward=1, backward=2, transfer=0.3)


def check(schedule, costs):
    """With and without a limit on receive buffers, which is kept; with shapes announced, too."""
    for limit in (None, 1, 2):
        lowered = lower(schedule, costs, receive_buffers=limit)
        for communicator in Communicator:
            announced = announce_shapes(lowered, communicator)
            check_deadlock_free(lowered, communicator=communicator)
            check_deadlock_free(announced, communicator=communicator)
            if limit is not None:
                assert max(peak_buffers(lowered).receive) <= limit
                assert max(peak_buffers(announced).receive) <= limit


def sweep(name, ranks, waves, microbatches):
    """Number of schedules checked; waves also serve as chunks."""
    checked = 0
    for pp, m in product(ranks, microbatches):
        seen = set()
        for n in waves:
            spec = ScheduleSpec(pp=pp, microbatches=m, waves=n, chunks=n, costs=SLOW_LINKS)
            try:
                schedule = build_schedule(name, spec)
            except ScheduleError:
                continue
            if schedule.placement not in seen:
                seen.add(schedule.placement)
                check(schedule, SLOW_LINKS)
                checked += 1
    return checked


@pytest.mark.parametrize("name", schedule_names())
def test_library_sample(name):
    assert sweep(name, (1, 2, 4), (1, 2), (1, 3, 8)) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", schedule_names())
def test_library_in_full(name):
    assert sweep(name, range(1, 9), (1, 2, 3), range(1, 18)) >= 30


@pytest.mark.slow
def test_500_larger_schedules_of_the_library():
    rng = random.Random(500)
    checked = 0
    while checked < 500:
        spec = ScheduleSpec(
            pp=rng.randint(9, 24),
            microbatches=rng.randint(1, 48),
            waves=rng.randint(1, 3),
            chunks=rng.randint(1, 4),
            costs=Costs(backward=rng.choice((1, 2, 3)), transfer=rng.choice((0, 0.05, 0.5))),
        )
        try:
            schedule = build_schedule(rng.choice(schedule_names()), spec)
        except ScheduleError:
            continue
        check(schedule, spec.costs)
        checked += 1


def test_random_user_schedules():
    rng = random.Random(7)
    for _ in range(300):
        check(random_schedule(rng), Costs(transfer=rng.choice((0, 0.4, 3))))

"""Real processes under gloo: no growth of memory, no hang whoever comes late."""

import pytest
from gloo_processes import run_ranks, train_after_a_delay, train_and_measure

from hanayo_megatron.schedule import ScheduleSpec

SPEC = ScheduleSpec(pp=4, microbatches=8, waves=2)


def check_memory(steps, warm):
    for before, after in run_ranks(
        train_and_measure, 4, "hanayo", SPEC, steps, warm, timeout=40 + steps
    ):
        assert after[0] - before[0] < 2 << 20, "memory grows"
        assert after[1] - before[1] < 50, "Python objects are left over"


def test_memory_does_not_grow_over_a_few_steps():
    check_memory(steps=60, warm=20)


@pytest.mark.slow
def test_memory_does_not_grow_over_1000_steps():
    check_memory(steps=1000, warm=100)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 50))]
)
def test_a_fresh_launch_with_delays_before_the_first_message(seed):
    assert all(run_ranks(train_after_a_delay, 4, "hanayo", SPEC, seed, timeout=60))

"""Real processes under gloo: as on the strict transport; no growth of memory, no hang."""

import pytest
from gloo_processes import run_ranks, train_after_a_delay, train_all, train_and_measure
from library_cases import library_cases
from pipeline_model import Conditions

from hanayo_megatron.schedule import ScheduleSpec, build_schedule
from hanayo_megatron.schedule.memory import peak_live
from hanayo_megatron.simulate.transfer_buffers import peak_buffers

SPEC = ScheduleSpec(pp=4, microbatches=8, waves=2)
VARIED = Conditions(communicators="group", several=True, ragged=True, announced=True)
CHECKED = Conditions(communicators="group", several=True, ragged=True, announced=True, checked=True)


@pytest.mark.parametrize("pp", [2, 3, 4])
def test_gradients_and_peaks_of_the_library(pp):
    """Every schedule, with known shapes, with shapes of all kinds, and in debug mode."""
    known = [(*case.values, Conditions()) for case in library_cases((pp,), (1, 2), (1, 4, 8))]
    varied = [
        (*case.values, how)
        for case in library_cases((pp,), (1, 2), (5,))
        for how in (VARIED, CHECKED)
    ]
    cases = known + varied
    of_ranks = run_ranks(train_all, pp, cases, timeout=300)
    for (name, spec, how), *results in zip(cases, *of_ranks, strict=True):
        schedule = build_schedule(name, spec)
        assert all(equal for equal, _ in results), (name, spec, how)
        peaks = peak_buffers(how.lists(schedule))
        assert [stats.peak_activations for _, stats in results] == peak_live(schedule)
        assert tuple(stats.peak_receive_buffers for _, stats in results) == peaks.receive
        assert tuple(stats.peak_send_buffers for _, stats in results) == peaks.send


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

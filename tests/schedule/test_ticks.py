"""Whole ticks: exact for times that are simple fractions, close for all others."""

import random

import pytest

from hanayo_megatron.schedule import Costs, Kind
from hanayo_megatron.schedule.placement import linear, wave


def test_sums_that_are_equal_stay_equal():
    """Three times 1.2 is four times 0.9, also as a sixth of each on three waves."""
    ticks = Costs(forward=0.9, backward=1.2, transfer=0.05).ticks(wave(4, 3))
    forward, backward = ticks.durations[Kind.F][0], ticks.durations[Kind.B][0]
    assert 4 * forward == 3 * backward
    assert 3 * ticks.links[0, 1] == forward
    assert ticks.time(6 * forward) == 0.9
    assert ticks.time(6 * backward) == 1.2


def test_measured_times_are_close():
    rng = random.Random(1)
    for _ in range(100):
        times = [rng.uniform(1e-4, 1) for _ in range(3)]
        ticks = Costs(forward=times[0], backward=times[1], transfer=times[2]).ticks(linear(2))
        found = (ticks.durations[Kind.F][0], ticks.durations[Kind.B][0], ticks.links[0, 1])
        assert list(map(ticks.time, found)) == pytest.approx(times, rel=1e-6)


def test_nothing_costs_anything():
    ticks = Costs(forward=0, input=0, weight=0).ticks(linear(2))
    assert ticks.durations == {kind: [0, 0] for kind in Kind}
    assert set(ticks.links.values()) == {0}

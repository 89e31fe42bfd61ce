"""Ranks find out how far their clocks are ahead of the first rank's."""

import pytest
from clock_processes import compare_clocks
from gloo_processes import run_ranks


def test_clocks_are_compared_to_a_millisecond():
    found = run_ranks(compare_clocks, 3, 1000.0, timeout=120)
    assert found == pytest.approx([0, 1000, 2000], abs=1e-3)

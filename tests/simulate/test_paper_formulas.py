"""The Hanayo paper's formulas: their own limits, and how far they are from the simulation."""

import pytest

from hanayo_megatron.lowering.lower import lower
from hanayo_megatron.schedule import Costs, ScheduleSpec
from hanayo_megatron.schedule.registry import build_schedule
from hanayo_megatron.simulate import paper_formulas as paper
from hanayo_megatron.simulate.simulate import simulate


def step(name, ranks, costs, waves=1):
    spec = ScheduleSpec(pp=ranks, microbatches=ranks, waves=waves, costs=costs)
    return simulate(lower(build_schedule(name, spec), costs), costs)


def test_formula_1_becomes_the_simplified_form():
    for ranks in range(1, 33):
        for waves in range(1, 9):
            full = paper.hanayo_bubble(P=ranks, W=waves, T_F=0.7, T_B=1.4)
            assert full == pytest.approx(paper.hanayo_bubble_simplified(P=ranks, W=waves))


def test_values_printed_in_the_design_notes():
    found = [paper.hanayo_bubble_simplified(P=8, W=waves) for waves in (1, 2, 4, 8)]
    assert found == pytest.approx([0.452, 0.255, 0.136, 0.070], abs=5e-4)


def test_formula_1_approximates_the_simulation():
    """Exact in the limit of many waves; a quarter too high for one wave."""
    gaps = []
    for waves in (1, 2, 4, 8):
        exact = step("hanayo", 8, Costs(), waves).bubble_ratio
        gaps.append(paper.hanayo_bubble(P=8, W=waves, T_F=1, T_B=2) - exact)
    assert gaps == pytest.approx([0.083, 0.017, 0.001, -0.002], abs=1e-3)


@pytest.mark.parametrize("transfer", [0, 0.125, 0.5, 1])
def test_gpipe_formula_is_exact_while_links_keep_up(transfer):
    for ranks in range(1, 9):
        exact = step("gpipe", ranks, Costs(transfer=transfer)).bubble_ratio
        formula = paper.gpipe_bubble(P=ranks, T_F=1, T_B=2, T_C=transfer)
        assert exact == pytest.approx(formula, rel=1e-12)


@pytest.mark.parametrize("transfer", [0, 0.125, 0.5, 1])
def test_dapple_step_time(transfer):
    """The denominator, with the factor P that the printed table lacks, is exact."""
    for ranks in range(2, 9):
        result = step("dapple", ranks, Costs(transfer=transfer))
        assert result.makespan == pytest.approx(3 * (2 * ranks - 1) + (4 * ranks - 6) * transfer)
        formula = paper.dapple_bubble(P=ranks, T_F=1, T_B=2, T_C=transfer)
        assert formula <= result.bubble_ratio + 1e-12
        assert formula == pytest.approx(result.bubble_ratio, abs=0.15 * transfer + 1e-12)


def test_chimera_formula_gives_the_ratios_of_the_chimera_paper():
    for ranks in range(2, 33, 2):
        equal = paper.chimera_bubble(P=ranks, T_F=1, T_B=1)
        assert equal == pytest.approx((ranks - 2) / (3 * ranks - 2))
        double = paper.chimera_bubble(P=ranks, T_F=1, T_B=2)
        assert double == pytest.approx((ranks - 2) / (1.5 * ranks + ranks - 2))
    assert paper.chimera_bubble(P=8, T_F=1, T_B=2) == pytest.approx(1 / 3)


def test_memory_columns_match_the_simulation():
    for ranks in (2, 4, 8):
        for name, formula in (
            ("gpipe", paper.gpipe_activations(P=ranks)),
            ("dapple", paper.dapple_activations(P=ranks)),
        ):
            peaks = step(name, ranks, Costs()).peak_activations
            assert (min(peaks), max(peaks)) == formula
        for waves in (1, 2, 3):
            peaks = step("hanayo", ranks, Costs(), waves).peak_activations
            assert (min(peaks), max(peaks)) == paper.hanayo_activations(P=ranks, W=waves)

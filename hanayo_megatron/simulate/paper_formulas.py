"""The table of four schemes and formula (1) of the Hanayo paper (Liu et al., SC'23, section 3).

Symbols as there: P workers, W waves, T_F and T_B the whole model's forward and backward time for
one microbatch divided by P, T_C one transfer. All are for as many microbatches as workers. That
T_F and T_B are one rank's share shows in formula (1): with T_B = 2 T_F and T_C = 0 it becomes
(2P-2)/(3PW+P-1) only if a rank spends P (T_F + T_B) on P microbatches.

The formulas are approximations; the simulator is exact. Where they differ, and by how much, is in
``tests/simulate/test_paper_formulas.py``.
"""

from __future__ import annotations


def gpipe_bubble(*, P: int, T_F: float, T_B: float, T_C: float = 0.0) -> float:
    """Bubble ratio of GPipe; exact for T_C up to the smaller of T_F and T_B."""
    bubbles = (P - 1) * (T_B + T_F) + (2 * P - 2) * T_C
    return bubbles / ((2 * P - 1) * (T_B + T_F) + (2 * P - 2) * T_C)


def dapple_bubble(*, P: int, T_F: float, T_B: float, T_C: float = 0.0) -> float:
    """Bubble ratio of DAPPLE (1F1B); exact for T_C = 0.

    Numerator and denominator are sums over the P workers. The source prints the denominator's
    last term as (4P-6) T_C, one worker's; here it is P times that, so that the ratio stays below
    1. A step takes exactly (2P-1) (T_F+T_B) + (4P-6) T_C, for T_C up to T_F and T_B.
    """
    bubbles = (P**2 - P) * (T_B + T_F) + (3 * P**2 - 5 * P + 2) * T_C
    return bubbles / ((2 * P**2 - P) * (T_B + T_F) + P * (4 * P - 6) * T_C)


def chimera_bubble(*, P: int, T_F: float, T_B: float) -> float:
    """Bubble ratio of Chimera with two replicas and without transfers, P even.

    The source gives the constant K = P²/2 - P only: 2K T_B is the idle time of all P workers.
    For T_B = T_F and T_B = 2 T_F this is (P-2)/(3P-2) and (P-2)/(5P/2-2), the ratios of the
    Chimera paper (Li and Hoefler, SC'21) for as many microbatches as workers.
    """
    K = P**2 / 2 - P
    return 2 * K * T_B / (P**2 * (T_F + T_B) + 2 * K * T_B)


def hanayo_bubble(*, P: int, W: int, T_F: float, T_B: float, T_C: float = 0.0) -> float:
    """Formula (1): bubble ratio of Hanayo with W waves; an approximation even for T_C = 0."""
    if P == 1:
        return 0.0
    idle = T_B / W + (1 + 2 * W + 2 / P + (P - 2) / 3) * T_C
    busy = P / (P - 1) * T_F + (1 / (2 * W) + P / (P - 1)) * T_B
    return idle / (busy + ((P - 2) / 2 + 4 * W) * T_C)


def hanayo_bubble_simplified(*, P: int, W: int) -> float:
    """Formula (1) with T_B = 2 T_F and T_C = 0."""
    return (2 * P - 2) / (3 * P * W + P - 1)


def gpipe_activations(*, P: int) -> tuple[float, float]:
    """Least and most activations of a worker, in M_a."""
    return (P, P)


def dapple_activations(*, P: int) -> tuple[float, float]:
    """Least and most activations of a worker, in M_a."""
    return (1, P)


def chimera_activations(*, P: int) -> tuple[float, float]:
    """Least and most activations of a worker, in M_a; beside twice the weights."""
    return (P / 2 + 1, P)


def hanayo_activations(*, P: int, W: int) -> tuple[float, float]:
    """Least and most activations of a worker, in M_a."""
    return (((2 * W - 1) * P + 1) / (2 * W), P)

"""Bubble and memory of the library's schedules in closed form, beside the exact simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.registry import canonical_name
from hanayo_megatron.schedule.schedule import ScheduleSpec
from hanayo_megatron.simulate import paper_formulas as paper


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """What a formula says; the simulator says what is.

    Args:
        bubble_ratio: idle part of the step, or of each rank's own span; ``None``: no formula for
            these numbers.
        activations: least and most over the ranks, in M_a; ``None``: no formula.
        weights: of every rank, in M_w.
        is_exact: equals the simulation; otherwise an approximation.
        of_own_span: between a rank's own first and last compute, the zero-bubble papers' measure.
        source: where the formula is from.
    """

    bubble_ratio: float | None
    activations: tuple[float, float] | None = None
    weights: float = 1.0
    is_exact: bool
    of_own_span: bool = False
    source: str


def closed_form(name: str, spec: ScheduleSpec) -> ClosedForm | None:
    """The formula for a schedule of the library, if there is one.

    Formulas are for equal stages and links: with per-stage or per-link figures there is none.
    Raises ScheduleError for an unknown name.
    """
    formula = _FORMULAS.get(canonical_name(name))
    if formula is None or spec.costs.stage_times or spec.costs.link_times:
        return None
    return formula(spec)


def _gpipe(spec: ScheduleSpec) -> ClosedForm:
    P, M, costs = spec.pp, spec.microbatches, spec.costs
    T = costs.forward + costs.full_backward
    bubbles = (P - 1) * T + (2 * P - 2) * costs.transfer
    return ClosedForm(
        bubble_ratio=_ratio(bubbles, M * T),
        activations=(M, M),
        is_exact=costs.transfer <= min(costs.forward, costs.full_backward),
        source="Hanayo, table of schemes; for any M",
    )


def _one_f_one_b(spec: ScheduleSpec) -> ClosedForm:
    P, M, costs = spec.pp, spec.microbatches, spec.costs
    T_F, T_B, T_C = costs.forward, costs.full_backward, costs.transfer
    if T_C == 0:
        bubble, source = _ratio(P - 1, M), "Hanayo, table of schemes; for any M"
    else:
        bubble = paper.dapple_bubble(P=P, T_F=T_F, T_B=T_B, T_C=T_C) if M == P else None
        source = "Hanayo, table of schemes; for M = P"
    return ClosedForm(
        bubble_ratio=bubble, activations=(1, min(M, P)), is_exact=T_C == 0, source=source
    )


def _eager_one_f_one_b(spec: ScheduleSpec) -> ClosedForm:
    P, M = spec.pp, spec.microbatches
    free = spec.costs.transfer == 0
    return ClosedForm(
        bubble_ratio=_ratio(P - 1, M) if free else None,
        activations=(1, min(M, 2 * P - 1)),
        is_exact=free,
        source="1F1B with twice the warm-up",
    )


def _chimera(spec: ScheduleSpec) -> ClosedForm:
    P, costs = spec.pp, spec.costs
    fits = P % 2 == 0 and spec.microbatches == P and costs.transfer == 0
    return ClosedForm(
        bubble_ratio=paper.chimera_bubble(P=P, T_F=costs.forward, T_B=costs.full_backward)
        if fits
        else None,
        activations=paper.chimera_activations(P=P) if fits else None,
        weights=2.0,
        is_exact=fits,
        source="Chimera; Hanayo, table of schemes; for M = P, P even, T_C = 0",
    )


def _hanayo(spec: ScheduleSpec) -> ClosedForm:
    P, W, costs = spec.pp, spec.waves, spec.costs
    T_F, T_B, T_C = costs.forward, costs.full_backward, costs.transfer
    fits = spec.microbatches == P
    return ClosedForm(
        bubble_ratio=paper.hanayo_bubble(P=P, W=W, T_F=T_F, T_B=T_B, T_C=T_C) if fits else None,
        activations=paper.hanayo_activations(P=P, W=W) if fits else None,
        is_exact=False,
        source="Hanayo, formula (1); for M = P",
    )


def _interleaved(spec: ScheduleSpec) -> ClosedForm:
    P, V, M = spec.pp, spec.chunks, spec.microbatches
    fits = M % P == 0 and spec.costs.transfer == 0
    return ClosedForm(
        bubble_ratio=_ratio(P - 1, V * M) if fits else None,
        activations=(((V - 1) * P + 1) / V, min(M, (V * P + P - 1) / V)) if fits else None,
        is_exact=fits,
        source="Megatron-LM (Narayanan et al., SC'21, section 2.2); for M a multiple of P, T_C = 0",
    )


def _breadth_first(spec: ScheduleSpec) -> ClosedForm:
    P, V, M = spec.pp, spec.chunks, spec.microbatches
    fits = M >= P and spec.costs.transfer == 0
    return ClosedForm(
        bubble_ratio=_ratio(P - 1, V * M) if fits else None,
        activations=(M, M),
        is_exact=fits,
        source="Breadth-first pipeline parallelism (Lamy-Poirier, MLSys'23); for M >= P, T_C = 0",
    )


def _zb_h1(spec: ScheduleSpec) -> ClosedForm:
    P, M, costs = spec.pp, spec.microbatches, spec.costs
    bubbles = (P - 1) * (costs.forward + costs.input - costs.weight)
    fits = M >= P and costs.transfer == 0 and bubbles >= 0
    return ClosedForm(
        bubble_ratio=_ratio(bubbles, M * _split_work(costs)) if fits else None,
        activations=(P, P) if fits else None,
        is_exact=False,
        source="Zero bubble (Qi et al., ICLR'24, table 2); for M >= P, T_C = 0",
    )


def _zb_h2(spec: ScheduleSpec) -> ClosedForm:
    P, M, costs = spec.pp, spec.microbatches, spec.costs
    bubbles = (P - 1) * (costs.forward + costs.input - 2 * costs.weight)
    fits = M >= 2 * P - 1 and costs.transfer == 0 and bubbles >= 0
    return ClosedForm(
        bubble_ratio=_ratio(bubbles, M * _split_work(costs)) if fits else None,
        activations=(2 * P - 1, 2 * P - 1) if fits else None,
        is_exact=False,
        of_own_span=True,
        source="Zero bubble (Qi et al., ICLR'24, table 2); for M >= 2P-1, T_C = 0",
    )


def _zb_v(spec: ScheduleSpec) -> ClosedForm:
    costs = spec.costs
    equal = costs.forward == costs.input == costs.weight
    fits = equal and costs.transfer == 0 and spec.microbatches >= 2 * spec.pp
    return ClosedForm(
        bubble_ratio=0.0 if fits else None,
        activations=(spec.pp, spec.pp) if fits else None,
        is_exact=False,
        of_own_span=True,
        source="Controllable memory (Qi et al., NeurIPS'24); for T_F = T_I = T_W, T_C = 0",
    )


def _split_work(costs: Costs) -> float:
    return costs.forward + costs.input + costs.weight


def _ratio(idle: float, work: float) -> float:
    return idle / (idle + work) if idle else 0.0


_FORMULAS: dict[str, Callable[[ScheduleSpec], ClosedForm]] = {
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "eager-1f1b": _eager_one_f_one_b,
    "interleaved": _interleaved,
    "breadth-first": _breadth_first,
    "chimera": _chimera,
    "hanayo": _hanayo,
    "zb-h1": _zb_h1,
    "zb-h2": _zb_h2,
    "zb-v": _zb_v,
}

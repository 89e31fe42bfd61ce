"""Bubble and memory of the library's schedules in closed form, beside the exact simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hanayo_megatron.schedule.registry import canonical_name
from hanayo_megatron.schedule.schedule import ScheduleSpec
from hanayo_megatron.simulate import paper_formulas as paper


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """What a formula says; the simulator says what is.

    Args:
        bubble_ratio: idle part of the step; ``None``: no formula for these numbers.
        own_span_bubble_ratio: idle part between a rank's own first and last compute, the measure
            of the zero-bubble papers; ``None`` where the source does not give it.
        activations: least and most over the ranks, in M_a; ``None``: no formula.
        weights: of every rank, in M_w.
        is_exact: equals the simulation; otherwise an approximation.
        source: where the formula is from.
    """

    bubble_ratio: float | None
    own_span_bubble_ratio: float | None = None
    activations: tuple[float, float] | None = None
    weights: float = 1.0
    is_exact: bool
    source: str


def closed_form(name: str, spec: ScheduleSpec) -> ClosedForm | None:
    """The formula for a schedule of the library, if there is one.

    Formulas are for equal stages and links and the schedule's own memory: with per-stage or
    per-link figures or a memory limit there is none. Raises ScheduleError for an unknown name.
    """
    formula = _FORMULAS.get(canonical_name(name))
    costs = spec.costs
    if formula is None or costs.stage_times or costs.link_times or spec.memory_limit is not None:
        return None
    return formula(_Symbols(spec))


class _Symbols:
    """The papers' symbols for the numbers of a spec."""

    def __init__(self, spec: ScheduleSpec) -> None:
        costs = spec.costs
        self.P, self.M, self.W, self.V = spec.pp, spec.microbatches, spec.waves, spec.chunks
        self.T_F, self.T_B, self.T_C = costs.forward, costs.full_backward, costs.transfer
        self.T_I, self.T_W = costs.input, costs.weight
        self.is_even = costs.forward == costs.input == costs.weight

    def joint(self, idle: float) -> float:
        """Bubble ratio of a schedule with joint backwards that idles for so long."""
        return _ratio(idle, self.M * (self.T_F + self.T_B))

    def split(self, idle: float) -> float:
        """Likewise with split backwards."""
        return _ratio(idle, self.M * (self.T_F + self.T_I + self.T_W))


def _gpipe(s: _Symbols) -> ClosedForm:
    return ClosedForm(
        bubble_ratio=s.joint((s.P - 1) * (s.T_F + s.T_B) + (2 * s.P - 2) * s.T_C),
        activations=(s.M, s.M),
        is_exact=min(s.T_F, s.T_B) >= s.T_C,
        source="Hanayo, table of schemes; for any M",
    )


def _one_f_one_b(s: _Symbols) -> ClosedForm:
    activations = (1, min(s.M, s.P))
    if s.T_C == 0:
        return ClosedForm(
            bubble_ratio=_ratio(s.P - 1, s.M),
            activations=activations,
            is_exact=True,
            source="Hanayo, table of schemes; for any M",
        )
    bubble = paper.dapple_bubble(P=s.P, T_F=s.T_F, T_B=s.T_B, T_C=s.T_C)
    return ClosedForm(
        bubble_ratio=bubble if s.M == s.P else None,
        activations=activations,
        is_exact=False,
        source="Hanayo, table of schemes; for M = P",
    )


def _eager_one_f_one_b(s: _Symbols) -> ClosedForm:
    return ClosedForm(
        bubble_ratio=_ratio(s.P - 1, s.M) if s.T_C == 0 else None,
        activations=(1, min(s.M, 2 * s.P - 1)),
        is_exact=True,
        source="as 1F1B; for T_C = 0",
    )


def _interleaved(s: _Symbols) -> ClosedForm:
    fits = s.M % s.P == 0 and s.T_C == 0
    most = min(s.M, (s.V * s.P + s.P - 1) / s.V)
    return ClosedForm(
        bubble_ratio=_ratio(s.P - 1, s.V * s.M) if fits else None,
        activations=(((s.V - 1) * s.P + 1) / s.V, most) if fits else None,
        is_exact=True,
        source="Narayanan et al., SC'21, section 2.2; for M a multiple of P, T_C = 0",
    )


def _breadth_first(s: _Symbols) -> ClosedForm:
    fits = s.M >= s.P and s.T_C == 0
    return ClosedForm(
        bubble_ratio=_ratio(s.P - 1, s.V * s.M) if fits else None,
        activations=(s.M, s.M),
        is_exact=True,
        source="Lamy-Poirier, MLSys'23; for M >= P, T_C = 0",
    )


def _chimera(s: _Symbols) -> ClosedForm:
    fits = s.P % 2 == 0 and s.M % s.P == 0 and s.T_C == 0
    return ClosedForm(
        bubble_ratio=s.joint((s.P - 2) * s.T_B) if fits else None,
        activations=paper.chimera_activations(P=s.P) if fits and s.M == s.P else None,
        weights=2.0,
        is_exact=s.M == s.P or s.T_B <= 2 * s.T_F,
        source="Li and Hoefler, SC'21; Hanayo, table of schemes; for M a multiple of P, T_C = 0",
    )


def _chimera_doubling(s: _Symbols) -> ClosedForm:
    fits = s.P % 2 == 0 and s.M % s.P == 0 and s.M >= 2 * s.P and s.T_C == 0
    return ClosedForm(
        bubble_ratio=s.joint((s.P / 2 - 1) * (s.T_F + s.T_B)) if fits else None,
        weights=2.0,
        is_exact=s.T_B <= 2 * s.T_F,
        source="Li and Hoefler, SC'21, section 3.5; for M a multiple of P, from 2P on, T_C = 0",
    )


def _hanayo(s: _Symbols) -> ClosedForm:
    fits = s.M == s.P
    bubble = paper.hanayo_bubble(P=s.P, W=s.W, T_F=s.T_F, T_B=s.T_B, T_C=s.T_C)
    return ClosedForm(
        bubble_ratio=bubble if fits else None,
        activations=paper.hanayo_activations(P=s.P, W=s.W) if fits else None,
        is_exact=False,
        source="Hanayo, formula (1); for M = P",
    )


def _hanayo_zb(s: _Symbols) -> ClosedForm:
    fits = s.is_even and s.M >= s.P and s.T_C == 0
    return ClosedForm(
        bubble_ratio=s.split((s.P - 1) * s.T_F / (2 * s.W)) if fits else None,
        is_exact=True,
        source="the bound that no order on waves can beat; for T_F = T_I = T_W, M >= P, T_C = 0",
    )


def _zb_h1(s: _Symbols) -> ClosedForm:
    fits = s.M >= s.P and s.T_C == 0 and min(s.T_F, s.T_I) >= s.T_W
    return ClosedForm(
        bubble_ratio=s.split((s.P - 1) * (s.T_F + s.T_I - s.T_W)) if fits else None,
        activations=(s.P, s.P) if fits else None,
        is_exact=True,
        source="Qi et al., ICLR'24, section 2.2; for M >= P, T_W up to T_F and T_I, T_C = 0",
    )


def _zb_h2(s: _Symbols) -> ClosedForm:
    fits = s.M >= 2 * s.P - 1 and s.T_C == 0 and s.T_F + s.T_I >= 2 * s.T_W
    own_span = s.split((s.P - 1) * (s.T_F + s.T_I - 2 * s.T_W))
    return ClosedForm(
        bubble_ratio=s.split((s.P - 1) * s.T_F) if fits and s.is_even else None,
        own_span_bubble_ratio=own_span if fits else None,
        activations=(2 * s.P - 1, 2 * s.P - 1) if fits else None,
        is_exact=s.is_even,
        source="Qi et al., ICLR'24, section 2.2, plus the fill; equal times, M >= 2P-1, T_C = 0",
    )


def _zb_v(s: _Symbols) -> ClosedForm:
    fits = s.is_even and s.M >= 2 * s.P and s.T_C == 0
    return ClosedForm(
        bubble_ratio=s.split((s.P - 1) * s.T_F / 2) if fits else None,
        own_span_bubble_ratio=0.0 if fits else None,
        activations=(s.P, s.P) if fits else None,
        is_exact=True,
        source="Qi et al., ICLR'24, section 6, plus the fill; equal times, M >= 2P, T_C = 0",
    )


def _v_half(s: _Symbols) -> ClosedForm:
    return _controllable_memory(s, idle=(3 * s.P - 7) / 2, activations=(s.P + 2) // 2)


def _v_min(s: _Symbols) -> ClosedForm:
    return _controllable_memory(s, idle=(4 * s.P - 5) / 2, activations=(s.P + 4) // 3)


def _controllable_memory(s: _Symbols, *, idle: float, activations: int) -> ClosedForm:
    fits = s.is_even and s.M >= 2 * s.P and s.P > 2 and s.T_C == 0
    return ClosedForm(
        bubble_ratio=s.split(idle * s.T_F) if fits else None,
        activations=(activations, activations) if fits else None,
        is_exact=False,
        source="Qi et al., NeurIPS'24; for T_F = T_I = T_W, M >= 2P, P > 2, T_C = 0",
    )


def _dualpipe_v(s: _Symbols) -> ClosedForm:
    fits = s.is_even and s.T_C == 0
    return ClosedForm(
        bubble_ratio=s.split((s.P - 1) * s.T_F / 2) if fits else None,
        is_exact=True,
        source="the last rank's fill; for T_F = T_I = T_W, T_C = 0, no F&B faster than F and B",
    )


def _ratio(idle: float, work: float) -> float:
    return idle / (idle + work) if idle else 0.0


_FORMULAS: dict[str, Callable[[_Symbols], ClosedForm]] = {
    "1f1b": _one_f_one_b,
    "breadth-first": _breadth_first,
    "chimera": _chimera,
    "chimera-doubling": _chimera_doubling,
    "dualpipe-v": _dualpipe_v,
    "eager-1f1b": _eager_one_f_one_b,
    "gpipe": _gpipe,
    "hanayo": _hanayo,
    "hanayo-zb": _hanayo_zb,
    "interleaved": _interleaved,
    "v-half": _v_half,
    "v-min": _v_min,
    "zb-h1": _zb_h1,
    "zb-h2": _zb_h2,
    "zb-v": _zb_v,
}

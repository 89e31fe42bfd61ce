"""Zero bubble on a linear placement, handcrafted (Qi et al., ICLR 2024): ZB-H1 and ZB-H2."""

from collections.abc import Callable

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.memory import live_limit
from hanayo_megatron.schedule.placement import linear
from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec
from hanayo_megatron.schedule.work_ahead import Ahead, work_ahead


@register_schedule("zb-h1")
def zb_h1(spec: ScheduleSpec) -> Schedule:
    """1F1B with the backward split, at 1F1B's peak memory; any P and M.

    Idle time (P-1)(T_F+T_I-T_W) (Qi et al., section 2.2). Activations: min(M, P)·M_a on every rank,
    or at most ``memory_limit`` of at least M_a.
    """
    return _linear_zero_bubble("zb-h1", spec, spec.pp, lambda rank: spec.pp - rank)


@register_schedule("zb-h2")
def zb_h2(spec: ScheduleSpec) -> Schedule:
    """Forwards until the first backward arrives, so that no rank waits; any P and M.

    Idle time within a rank's own span (P-1)(T_F+T_I-2T_W), zero for equal times and M >= 2P-1; the
    step still takes the fill (P-1)·T_F longer, unless steps overlap (Qi et al., section 2.2).
    Activations: min(M, 2P-1)·M_a, or at most ``memory_limit`` of at least M_a.
    """
    most = 2 * spec.pp - 1
    return _linear_zero_bubble("zb-h2", spec, most, lambda rank: most - 2 * rank)


def _linear_zero_bubble(
    name: str, spec: ScheduleSpec, own_limit: int, warmup_of: Callable[[int], int]
) -> Schedule:
    """``warmup_of`` forwards, then input gradient and forward in turn; W where a rank waits."""
    placement = linear(spec.pp)
    max_live = live_limit(name, spec, placement, own=own_limit, least=1)
    draft = []
    for rank in range(spec.pp):
        warmup = min(warmup_of(rank), max_live, spec.microbatches)
        actions = [Action(rank, Kind.F, m) for m in range(warmup)]
        for m in range(spec.microbatches):
            actions.append(Action(rank, Kind.I, m))
            if m + warmup < spec.microbatches:
                actions.append(Action(rank, Kind.F, m + warmup))
        draft.append(actions)
    run = work_ahead(
        draft,
        placement,
        num_microbatches=spec.microbatches,
        costs=spec.costs,
        max_live=max_live,
        ahead=Ahead.NOTHING,
    )
    return Schedule(name, placement, spec.microbatches, run.orders)

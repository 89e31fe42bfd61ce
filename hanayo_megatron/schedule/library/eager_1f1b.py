"""1F1B that forwards earlier, so that transfers hide behind computes (JaxPP, MLSys 2025)."""

from hanayo_megatron.schedule.library.one_f_one_b import alternate
from hanayo_megatron.schedule.placement import linear
from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec


@register_schedule("eager-1f1b")
def eager_1f1b(spec: ScheduleSpec) -> Schedule:
    """Warm-up of 2(P-1-r) forwards on rank r, then forward and backward in turn; any P and M.

    Bubble ratio (P-1)/(M+P-1) as 1F1B while transfers cost nothing; with T_C > 0 a gradient has one
    more forward of time to arrive. Activations: min(M, 2(P-r)-1)·M_a on rank r.
    """
    orders = tuple(
        alternate(rank, 2 * (spec.pp - 1 - rank), spec.microbatches) for rank in range(spec.pp)
    )
    return Schedule("eager-1f1b", linear(spec.pp), spec.microbatches, orders)

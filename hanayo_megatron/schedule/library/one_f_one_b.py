"""1F1B: after a warm-up, one forward and one backward in turn (DAPPLE, PipeDream-flush)."""

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.placement import linear
from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec


@register_schedule("1f1b", aliases=("dapple",))
def one_f_one_b(spec: ScheduleSpec) -> Schedule:
    """Warm-up of P-1-r forwards on rank r, then forward and backward in turn; any P and M.

    Bubble ratio (P-1)/(M+P-1), as GPipe. Activations: min(M, P-r)·M_a on rank r.
    """
    orders = tuple(
        alternate(rank, spec.pp - 1 - rank, spec.microbatches) for rank in range(spec.pp)
    )
    return Schedule("1f1b", linear(spec.pp), spec.microbatches, orders)


def alternate(stage: int, warmup: int, num_microbatches: int) -> tuple[Action, ...]:
    """Order of one stage: ``warmup`` forwards, forward and backward in turn, the last backwards."""
    warmup = min(warmup, num_microbatches)
    order = [Action(stage, Kind.F, m) for m in range(warmup)]
    for m in range(warmup, num_microbatches):
        order += (Action(stage, Kind.F, m), Action(stage, Kind.B, m - warmup))
    order += (Action(stage, Kind.B, m) for m in range(num_microbatches - warmup, num_microbatches))
    return tuple(order)

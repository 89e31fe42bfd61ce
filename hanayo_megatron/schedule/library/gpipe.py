"""GPipe: all forwards, then all backwards (Huang et al., NeurIPS 2019)."""

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.placement import linear
from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec


@register_schedule("gpipe")
def gpipe(spec: ScheduleSpec) -> Schedule:
    """All forwards, then all backwards, on a linear placement; any P and M.

    Bubble ratio (P-1)/(M+P-1). Activations: M·M_a on every rank.
    """
    microbatches = range(spec.microbatches)
    orders = tuple(
        tuple(Action(rank, kind, m) for kind in (Kind.F, Kind.B) for m in microbatches)
        for rank in range(spec.pp)
    )
    return Schedule("gpipe", linear(spec.pp), spec.microbatches, orders)

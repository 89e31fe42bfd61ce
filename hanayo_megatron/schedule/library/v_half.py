"""Half of 1F1B's activations (Qi et al., Controllable Memory, NeurIPS 2024: V-Half)."""

from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec
from hanayo_megatron.schedule.v_shape import v_schedule


@register_schedule("v-half")
def v_half(spec: ScheduleSpec) -> Schedule:
    """V placement (2P stages), backward split; any P and M.

    Activations at most floor((P+2)/2)·M_a, or ``memory_limit`` of at least M_a. For T_F=T_I=T_W,
    even P >= 4 and M > P/2 the step takes (6(M-1) + 3P-1)·T_F/2: about half of 1F1B's bubble.
    """
    return v_schedule("v-half", spec, own_limit=(spec.pp + 2) // 2)

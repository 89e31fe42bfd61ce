"""A third of 1F1B's activations (Qi et al., Controllable Memory, NeurIPS 2024: V-Min)."""

from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec
from hanayo_megatron.schedule.v_shape import v_schedule


@register_schedule("v-min")
def v_min(spec: ScheduleSpec) -> Schedule:
    """V placement (2P stages), backward split; any P and M.

    Activations at most floor((P+4)/3)·M_a, or ``memory_limit`` of at least M_a. For T_F=T_I=T_W the
    step takes at most (6(M-1) + 4P+1)·T_F/2: about two thirds of 1F1B's bubble.
    """
    return v_schedule("v-min", spec, own_limit=(spec.pp + 4) // 3)

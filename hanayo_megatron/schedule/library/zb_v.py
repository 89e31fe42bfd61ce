"""Zero bubble on one wave (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 6)."""

from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec
from hanayo_megatron.schedule.v_shape import v_schedule


@register_schedule("zb-v")
def zb_v(spec: ScheduleSpec) -> Schedule:
    """V placement (2P stages), backward split, 1F1B's peak memory; any P and M.

    For T_F=T_I=T_W and M >= 2P no rank waits within its own span; the step takes
    M·(T_F+T_I+T_W) + (P-1)·T_F/2. Activations at most P·M_a. With ``memory_limit`` the fastest
    order within it, down to M_a; see v-half and v-min.
    """
    return v_schedule("zb-v", spec, own_limit=spec.pp)

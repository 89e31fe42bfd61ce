"""Hanayo waves with the backward split: weight gradients fill the waits."""

from hanayo_megatron.schedule.library.hanayo import wave_schedule
from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec


@register_schedule("hanayo-zb")
def hanayo_zb(spec: ScheduleSpec) -> Schedule:
    """W waves over 2WP stages, backward split; any P, W and M.

    For T_F=T_I=T_W, T_C=0 and M >= P the makespan is M·(T_F+T_I+T_W) + (P-1)·T_F/(2W), which no
    order on this placement can beat: the last rank starts that late. Activations at most
    P·M_a, or ``memory_limit`` of at least M_a.

    Own combination of Hanayo (Liu et al., SC'23) and Zero Bubble (Qi et al., ICLR 2024).
    """
    return wave_schedule("hanayo-zb", spec, split_backward=True)

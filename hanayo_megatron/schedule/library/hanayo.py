"""Hanayo waves (Liu et al., SC'23): one pipeline that changes direction instead of two replicas."""

from hanayo_megatron.schedule.greedy import greedy_orders
from hanayo_megatron.schedule.placement import wave
from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec


@register_schedule("hanayo")
def hanayo(spec: ScheduleSpec) -> Schedule:
    """W waves over 2WP stages; any P, W and M.

    Bubble ratio, approximated for M=P, T_B=2T_F, T_C=0: (2P-2)/(3PW+P-1) (Hanayo, formula 1).
    Activations between ((2W-1)P+1)/(2W)·M_a and P·M_a. Every rank needs 2W stages.
    """
    placement = wave(spec.pp, spec.waves)
    orders = greedy_orders(
        placement,
        num_microbatches=spec.microbatches,
        costs=spec.costs,
        max_in_flight=spec.pp,
    )
    return Schedule("hanayo", placement, spec.microbatches, orders)

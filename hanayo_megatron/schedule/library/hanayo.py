"""Hanayo waves (Liu et al., SC'23): one pipeline that changes direction instead of two replicas."""

from hanayo_megatron.schedule.fastest import fastest_blocks
from hanayo_megatron.schedule.memory import live_limit
from hanayo_megatron.schedule.placement import wave
from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec


@register_schedule("hanayo")
def hanayo(spec: ScheduleSpec) -> Schedule:
    """W waves over 2WP stages; any P, W and M. Every rank holds 2W stages.

    Bubble ratio, approximated for M=P, T_B=2T_F, T_C=0: (2P-2)/(3PW+P-1) (Hanayo, formula 1).
    Activations between ((2W-1)P+1)/(2W)·M_a and P·M_a for M=P, at most P·M_a for any M.

    The paper fixes M=P. Other M repeat blocks of up to P microbatches, overlapped as far as the
    memory (P·M_a, or ``memory_limit`` of at least M_a) allows. If P divides M and T_B=2T_F, idle
    time grows by at most P stage forwards a block instead of a whole fill and drain.
    """
    return wave_schedule("hanayo", spec, split_backward=False)


def wave_schedule(name: str, spec: ScheduleSpec, *, split_backward: bool) -> Schedule:
    """Fastest repetition of greedy blocks on ``spec.waves`` waves, within P·M_a or the limit."""
    placement = wave(spec.pp, spec.waves)
    max_live = live_limit(name, spec, placement, own=spec.pp, least=1)
    return fastest_blocks(name, spec, placement, max_live=max_live, split_backward=split_backward)

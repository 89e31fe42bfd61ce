"""Chimera: two copies of the model, one down the ranks and one up (Li and Hoefler, SC'21)."""

from hanayo_megatron.schedule.fastest import fastest_blocks
from hanayo_megatron.schedule.memory import live_limit
from hanayo_megatron.schedule.placement import bidirectional
from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleError, ScheduleSpec


@register_schedule("chimera")
def chimera(spec: ScheduleSpec) -> Schedule:
    """Both copies at once, within 1F1B's peak memory; even P, any M.

    Every rank holds two stages, one of each copy: weights 2·M_w. Microbatches take turns between
    the copies; the down copy has stage ids 0..P-1, the up copy P..2P-1. If P divides M,
    idle time is (P-2)·T_F for T_F=T_B and within T_F of (P-2)·T_B for T_B=2T_F: for M=P a bubble
    ratio of 0.25, 0.333, 0.368 for P=4, 8, 16. Activations between (P/2+1)·M_a and P·M_a for M=P,
    at most P·M_a for any M.

    For M > P blocks of up to P microbatches are overlapped as far as P·M_a, or ``memory_limit`` of
    at least 2·M_a, allows (direct concatenation, section 3.5).
    """
    return _chimera("chimera", spec, own_limit=spec.pp)


@register_schedule("chimera-doubling")
def chimera_doubling(spec: ScheduleSpec) -> Schedule:
    """Chimera with the memory of forward doubling (section 3.5): 2P·M_a; even P, any M.

    The paper runs forwards in pairs, so that a forward takes as long as a backward and blocks leave
    no bubbles between them. It is the memory that this takes; here forwards may also run singly.
    For T_B=2T_F and M a multiple of P, at least 2P, idle time is (P/2-1)(T_F+T_B).

    Backward halving has no name of its own: it is this schedule, given twice as many microbatches
    of half the size. A microbatch is the smallest piece of a schedule; none can be cut for its
    backward alone.
    """
    return _chimera("chimera-doubling", spec, own_limit=2 * spec.pp)


def _chimera(name: str, spec: ScheduleSpec, *, own_limit: int) -> Schedule:
    if spec.pp % 2:
        below = f"are {spec.pp - 1} and" if spec.pp > 1 else "is"
        raise ScheduleError(
            f"{name} needs an even number of ranks, so that the copies meet between two ranks; "
            f"given {spec.pp}, nearest {below} {spec.pp + 1}"
        )
    placement = bidirectional(spec.pp)
    max_live = live_limit(name, spec, placement, own=own_limit, least=2)
    return fastest_blocks(name, spec, placement, max_live=max_live)

"""Interleaved 1F1B, also called circular (Narayanan et al., SC'21)."""

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.fastest import Way, fastest
from hanayo_megatron.schedule.placement import looped
from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec
from hanayo_megatron.schedule.work_ahead import Draft


@register_schedule("interleaved", aliases=("circular",))
def interleaved(spec: ScheduleSpec) -> Schedule:
    """1F1B on a looped placement (VP stages): groups of P microbatches, chunk by chunk.

    Any P, V and M. For M a multiple of P the order is Megatron's: bubble ratio (P-1)/(VM+P-1),
    activations min(VM, VP+P-1-2r)/V·M_a on rank r. Other M, which Megatron refuses, are cut into
    equal groups of less or more than P, whichever is faster, and ranks that would wait work ahead;
    activations are at most (VP+P-1)/V·M_a on every rank.
    """
    pp, chunks = spec.pp, spec.chunks
    placement = looped(pp, chunks)
    if spec.microbatches % pp == 0:
        orders = _draft(pp, chunks, spec.microbatches, spec.microbatches // pp)
    else:
        ways = (
            Way(lambda m: _draft(pp, chunks, m, max(1, m // pp))),
            Way(lambda m: _draft(pp, chunks, m, -(-m // pp))),
        )
        orders = fastest(
            ways,
            placement,
            num_microbatches=spec.microbatches,
            costs=spec.costs,
            max_live=chunks * pp + pp - 1,
        ).orders
    return Schedule("interleaved", placement, spec.microbatches, tuple(map(tuple, orders)))


def _draft(num_ranks: int, chunks: int, num_microbatches: int, num_groups: int) -> Draft:
    """Groups go through chunk after chunk; the warm-up covers the way to the last rank and back."""
    sizes = [
        num_microbatches // num_groups + (group < num_microbatches % num_groups)
        for group in range(num_groups)
    ]
    forwards, backwards = [], []  # (chunk, microbatch)
    first = 0
    for size in sizes:
        for chunk in range(chunks):
            for microbatch in range(first, first + size):
                forwards.append((chunk, microbatch))
                backwards.append((chunks - 1 - chunk, microbatch))
        first += size
    draft = []
    for rank in range(num_ranks):
        forward = [Action(c * num_ranks + rank, Kind.F, m) for c, m in forwards]
        backward = [Action(c * num_ranks + rank, Kind.B, m) for c, m in backwards]
        warmup = min(len(forward), (chunks - 1) * sizes[0] + 2 * (num_ranks - 1 - rank))
        order = forward[:warmup]
        for pair in zip(forward[warmup:], backward, strict=False):
            order += pair
        draft.append(order + backward[len(forward) - warmup :])
    return draft

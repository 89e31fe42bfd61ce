"""A few microbatches planned in time, repeated over all microbatches of a step."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.schedule.work_ahead import Draft


@dataclass(frozen=True)
class Block:
    """Planned starts of the forwards and backwards (joint, or for the input) of k microbatches.

    Only the order matters in the end: plans of one block may overlap those of the next.

    Args:
        placement: rank of every stage.
        microbatches: k, numbered from 0.
        starts: (time, action) of each rank, ascending.
    """

    placement: Placement
    microbatches: int
    starts: tuple[tuple[tuple[int, Action], ...], ...]


class Cut(Enum):
    """How microbatches that are no multiple of the block are cut into blocks."""

    EVEN = auto()
    REMAINDER_FIRST = auto()
    REMAINDER_LAST = auto()


def repeat(block: Block, num_microbatches: int, *, period: int, cut: Cut = Cut.EVEN) -> Draft:
    """One block every ``period``; a block of fewer microbatches leaves out its last ones."""
    sizes = block_sizes(block, num_microbatches, cut)
    bases = list(accumulate(sizes, initial=0))
    count = len(sizes)
    make = tuple.__new__
    draft = []
    for starts in block.starts:
        # One number says when, in which block, and which of the block's actions: quick to sort.
        width = len(starts)
        keys = [
            ((time + number * period) * count + number) * width + index
            for index, (time, (_, _, microbatch)) in enumerate(starts)
            for number in range(count)
            if microbatch < sizes[number]
        ]
        keys.sort()
        actions = [action for _, action in starts]
        order = []
        for key in keys:
            stage, kind, microbatch = actions[key % width]
            base = bases[key // width % count]
            order.append(make(Action, (stage, kind, base + microbatch)))
        draft.append(order)
    return draft


def block_sizes(block: Block, num_microbatches: int, cut: Cut) -> list[int]:
    """Microbatches of each block. Every block but the last gives each replica the same number."""
    replicas = block.placement.replicas
    whole = block.microbatches // replicas  # microbatches of each replica
    units = -(-num_microbatches // replicas)
    count = -(-units // whole)
    rest = units - whole * (count - 1)
    match cut:
        case Cut.EVEN:
            shares = [units // count + (number < units % count) for number in range(count)]
        case Cut.REMAINDER_FIRST:
            shares = [rest] + [whole] * (count - 1)
        case Cut.REMAINDER_LAST:
            shares = [whole] * (count - 1) + [rest]
    sizes = [replicas * share for share in shares]
    sizes[-1] -= replicas * units - num_microbatches
    return sizes


def most_live(draft: Draft) -> int:
    """Most activations of single stages on any rank, if the draft runs in its order."""
    most = 0
    for actions in draft:
        live = 0
        for _, kind, _ in actions:
            if kind is Kind.F:
                live += 1
                if live > most:
                    most = live
            else:
                live -= 1
    return most


def tightest_period(block: Block, max_live: int) -> int | None:
    """Smallest period at which repeated blocks fit into ``max_live`` activations on every rank.

    None if one block alone does not fit. Periods below an eighth of the block are not tried: they
    would ask for several times the ranks' speed.
    """
    span = 1 + max(time for starts in block.starts for time, _ in starts)
    if _steady_live(block, span) > max_live:
        return None
    low, high = span // 8, span  # at high, blocks do not overlap
    while high - low > span // 1000 + 1:
        middle = (low + high) // 2
        if _steady_live(block, middle) > max_live:
            low = middle
        else:
            high = middle
    return high


def _steady_live(block: Block, period: int) -> int:
    """Most activations of single stages on any rank if blocks are repeated without end."""
    most = 0
    for starts in block.starts:
        times = [time for time, _ in starts]
        changes = [1 if action.kind is Kind.F else -1 for _, action in starts]
        live = list(accumulate(changes, initial=0))  # after so many actions of the block
        for index, (time, change) in enumerate(zip(times, changes, strict=True)):
            if change < 0:
                continue
            total = live[index + 1]
            for earlier in range(time + period, times[-1], period):  # blocks that began before
                total += live[bisect_right(times, earlier)]
            for later in range(time - period, times[0], -period):
                total += live[bisect_left(times, later)]
            if total > most:
                most = total
    return most

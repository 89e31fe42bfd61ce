"""Schedules on one wave with the backward split, for any memory: zb-v, v-half, v-min.

A microbatch passes its 2P stages in four legs, each once through all ranks: forward down, forward
up, backward down (in the ranks' sense), backward up. A *pattern* gives the time from one rank to
the next on each leg, and the pause at the three turns, in units in which F, I and W of one stage
take 1. Repeated every 6 units it fills all ranks, without collisions, and the time from a forward
to its backward is the memory: hops of 1 keep a third of 1F1B's activations, hops of 1 and 2 half of
them (Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024).
"""

from __future__ import annotations

from collections.abc import Iterator

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.block import Block, repeat
from hanayo_megatron.schedule.fastest import Way, fastest_blocks
from hanayo_megatron.schedule.memory import live_limit
from hanayo_megatron.schedule.placement import Placement, wave
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec
from hanayo_megatron.schedule.work_ahead import Ahead, Draft

_PERIOD = 6


def v_schedule(name: str, spec: ScheduleSpec, *, own_limit: int) -> Schedule:
    """Fastest known order within ``spec.memory_limit``, or else ``own_limit``, in M_a."""
    placement = wave(spec.pp, 1)
    max_live = live_limit(name, spec, placement, own=own_limit, least=1)
    return fastest_blocks(
        name,
        spec,
        placement,
        max_live=max_live,
        split_backward=True,
        before=_ways(placement),
    )


def _ways(placement: Placement) -> Iterator[Way]:
    yield Way(
        lambda num_microbatches: _zero_bubble_draft(placement.num_ranks, num_microbatches),
        ahead=(Ahead.NOTHING,),
    )
    even = placement.num_ranks % 2 == 0
    yield _repetition(placement, hops=(1, 2, 1, 2), pauses=(4, 4, 2) if even else (1, 1, 2))
    # The backward must not meet the forwards on the way back: that depends on P modulo 3.
    pause = (3, 1, 5)[placement.num_ranks % 3]
    yield _repetition(placement, hops=(1, 1, 1, 1), pauses=(1, pause, 1))


def _repetition(
    placement: Placement, hops: tuple[int, int, int, int], pauses: tuple[int, int, int]
) -> Way:
    block = _pattern(placement, hops, pauses)
    return Way(lambda num_microbatches: repeat(block, num_microbatches, period=_PERIOD))


def _pattern(
    placement: Placement, hops: tuple[int, int, int, int], pauses: tuple[int, int, int]
) -> Block:
    ranks = placement.num_ranks
    down, up = range(ranks), range(ranks, 2 * ranks)
    legs = ((Kind.F, down), (Kind.F, up), (Kind.I, up[::-1]), (Kind.I, down[::-1]))
    starts: list[list[tuple[int, Action]]] = [[] for _ in range(ranks)]
    time = 0
    for (kind, stages), hop, pause in zip(legs, hops, (*pauses, 0), strict=True):
        for stage in stages:
            starts[placement.rank_of[stage]].append((time, Action(stage, kind, 0)))
            time += hop
        time += pause - hop
    return Block(placement, 1, tuple(map(tuple, starts)))


def _zero_bubble_draft(num_ranks: int, num_microbatches: int) -> Draft:
    """Forwards fill the time up to a rank's first backward; then the four kinds take turns.

    Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 6 (ZB-V).
    """
    draft = []
    for rank in range(num_ranks):
        down, up = rank, 2 * num_ranks - 1 - rank
        cells = (
            [(down, Kind.F)] * (2 * (num_ranks - rank) - 1)
            + [(up, Kind.F), (down, Kind.F)] * rank
            + [(up, Kind.F), (up, Kind.I)] * (num_ranks - rank)
            + [(down, Kind.F), (down, Kind.I), (up, Kind.F), (up, Kind.I)] * num_microbatches
        )
        count = dict.fromkeys(cells, 0)
        actions = []
        for cell in cells:
            if count[cell] < num_microbatches:
                actions.append(Action(*cell, count[cell]))
                count[cell] += 1
        draft.append(actions)
    return draft

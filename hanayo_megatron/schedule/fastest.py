"""Of several drafts of a schedule, the one that takes the least time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.block import (
    Block,
    Cut,
    block_sizes,
    most_live,
    repeat,
    tightest_period,
)
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.greedy import greedy_block
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec
from hanayo_megatron.schedule.work_ahead import Ahead, Draft, Run, work_ahead


@dataclass(frozen=True)
class Way:
    """One way to make a schedule.

    Args:
        draft: drafts a schedule of so many microbatches.
        ahead: how ranks may depart from it, each worth a trial.
    """

    draft: Callable[[int], Draft]
    ahead: tuple[Ahead, ...] = (Ahead.EVERYTHING, Ahead.BACKWARDS)


_TRIAL_ACTIONS = 300_000  # under a second of trials


def fastest_blocks(
    name: str,
    spec: ScheduleSpec,
    placement: Placement,
    *,
    max_live: int,
    split_backward: bool = False,
    before: Iterable[Way] = (),
) -> Schedule:
    """The fastest repetition of greedy blocks on a placement; see ``fastest``.

    ``before`` are ways to try before them.
    """
    blocks = repeated_blocks(
        placement,
        num_microbatches=spec.microbatches,
        costs=spec.costs,
        max_live=max_live,
        split_backward=split_backward,
    )
    run = fastest(
        chain(before, blocks),
        placement,
        num_microbatches=spec.microbatches,
        costs=spec.costs,
        max_live=max_live,
    )
    return Schedule(name, placement, spec.microbatches, run.orders)


def fastest(
    ways: Iterable[Way],
    placement: Placement,
    *,
    num_microbatches: int,
    costs: Costs,
    max_live: int,
) -> Run | None:
    """Run the drafts that fit, ranks working ahead or not, and take the fastest.

    Stops at a run that no order can beat, and when trials have become long: big pipelines are
    tried on few microbatches, and on as many ways as there is time for.

    Args:
        ways: the most promising first; made as they are needed.
        max_live: activations of single stages that a rank may hold.

    None if no draft fits and runs.
    """
    actions = 2 * placement.model_stages
    few = num_microbatches
    if 20 * actions * few > _TRIAL_ACTIONS:
        few = min(few, 3 * placement.num_ranks + few % placement.num_ranks)

    def run(draft: Draft, count: int, ahead: Ahead) -> Run | None:
        return work_ahead(
            draft,
            placement,
            num_microbatches=count,
            costs=costs,
            max_live=max_live,
            ahead=ahead,
        )

    best: tuple[Way, Ahead] | None = None
    least: Run | None = None
    tried = 0
    for way, draft, ahead in _trials(ways, few, max_live):
        found = run(draft, few, ahead)
        tried += actions * few
        if found is None:
            continue
        if least is None or found.makespan < least.makespan:
            best, least = (way, ahead), found
        if least.makespan <= _least_makespan(placement, draft, costs) or tried > _TRIAL_ACTIONS:
            break
    if best is None or few == num_microbatches:
        return least
    way, ahead = best
    return run(way.draft(num_microbatches), num_microbatches, ahead)


def repeated_blocks(
    placement: Placement,
    *,
    num_microbatches: int,
    costs: Costs,
    max_live: int,
    split_backward: bool = False,
) -> Iterator[Way]:
    """Greedy blocks of several sizes, each repeated as tightly as the memory allows.

    A block of P microbatches fills a wave pipeline; smaller ones suit less memory, or a remainder.
    """
    replicas = placement.replicas
    stages_of_rank = placement.num_stages // placement.num_ranks
    fitting = max(1, max_live // stages_of_rank * replicas)
    most = min(fitting, placement.num_ranks, num_microbatches)
    count = -(-num_microbatches // most)
    sizes = (most, -(-num_microbatches // count), most - 1, -(-most // 2), -(-most // 4), 1)
    whole = [-(-size // replicas) * replicas for size in sizes if size]
    ahead = [Ahead.EVERYTHING, Ahead.BACKWARDS] + [Ahead.NOTHING] * split_backward
    for size in dict.fromkeys(whole):
        block = greedy_block(
            placement, microbatches=size, costs=costs, split_backward=split_backward
        )
        period = tightest_period(block, max_live)
        if period is not None:
            cuts = {tuple(block_sizes(block, num_microbatches, cut)): cut for cut in Cut}
            yield from (_repetition(block, period, cut, tuple(ahead)) for cut in cuts.values())


def _repetition(block: Block, period: int, cut: Cut, ahead: tuple[Ahead, ...]) -> Way:
    return Way(
        lambda num_microbatches: repeat(block, num_microbatches, period=period, cut=cut), ahead
    )


def _trials(
    ways: Iterable[Way], num_microbatches: int, max_live: int
) -> Iterator[tuple[Way, Draft, Ahead]]:
    for way in ways:
        draft = way.draft(num_microbatches)
        if most_live(draft) <= max_live:
            yield from ((way, draft, ahead) for ahead in way.ahead)


def _least_makespan(placement: Placement, draft: Draft, costs: Costs) -> int:
    """No rank can be done before its first input arrived and its whole work is done."""
    ticks = costs.ticks(placement)
    arrival = []
    for stage, rank in enumerate(placement.rank_of):
        if placement.is_first(stage):
            arrival.append(0)
            continue
        before = placement.rank_of[stage - 1]
        forward = ticks.durations[Kind.F][stage - 1]
        arrival.append(arrival[-1] + forward + ticks.links[before, rank])
    least = 0
    for actions in draft:
        work = 0
        for stage, kind, _ in actions:
            work += ticks.durations[kind][stage]
            if kind is Kind.I:
                work += ticks.durations[Kind.W][stage]
        first = min((arrival[stage] for stage, _, _ in actions), default=0)
        least = max(least, first + work)
    return least

"""Forward passes only, for evaluation on the placement that training uses."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.schedule.schedule import Schedule, ScheduleError


def forward_only_schedule(
    placement: Placement,
    num_microbatches: int,
    *,
    microbatches_of_replica: Sequence[Sequence[int]] | None = None,
    costs: Costs | None = None,
) -> Schedule:
    """Every microbatch once forward through one replica; any placement, any M of at least 1.

    Every rank takes the deepest stage that is ready, lowest microbatch first. A replica has at most
    2P microbatches between its first and last stage, so that a slow rank does not pile up input;
    balanced ranks are busy with P.

    Args:
        placement: rank of every stage, as in training.
        num_microbatches: M, independent of what the training schedule can do.
        microbatches_of_replica: what each replica's first stage reads; None: alternately.
        costs: times that decide who is ready first.

    Raises ScheduleError if the replicas' microbatches are not a partition of 0..M-1.
    """
    shares = _checked_shares(placement, num_microbatches, microbatches_of_replica)
    ticks = (costs or Costs()).ticks(placement)
    durations = ticks.durations[Kind.F]
    rank_of, depth = placement.rank_of, placement.model_stages

    orders: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    ready: list[list[tuple[int, int, int]]] = [[] for _ in orders]  # (-depth, microbatch, stage)
    unread = [list(reversed(share)) for share in shares]
    for replica, share in enumerate(unread):
        for _ in range(min(2 * placement.num_ranks, len(share))):
            stage = replica * depth
            ready[rank_of[stage]].append((0, share.pop(), stage))
    for queue in ready:
        heapify(queue)

    busy = [False] * placement.num_ranks
    arrivals: list[tuple[int, int, int, bool]] = []  # (time, stage, microbatch, computed there)
    now, idle = 0, set(range(placement.num_ranks))
    while True:
        for rank in sorted(idle):
            if busy[rank] or not ready[rank]:
                continue
            _, microbatch, stage = heappop(ready[rank])
            orders[rank].append(Action(stage, Kind.F, microbatch))
            busy[rank] = True
            heappush(arrivals, (now + durations[stage], stage, microbatch, True))
        if not arrivals:
            break
        now, idle = arrivals[0][0], set()
        while arrivals and arrivals[0][0] == now:
            _, stage, microbatch, computed = heappop(arrivals)
            rank = rank_of[stage]
            idle.add(rank)
            if not computed:
                heappush(ready[rank], (-(stage % depth), microbatch, stage))
                continue
            busy[rank] = False
            if not placement.is_last(stage):
                link = ticks.links[rank, rank_of[stage + 1]]
                heappush(arrivals, (now + link, stage + 1, microbatch, False))
            elif unread[replica := placement.replica_of(stage)]:
                first = replica * depth
                heappush(arrivals, (now, first, unread[replica].pop(), False))
    return Schedule("forward-only", placement, num_microbatches, tuple(map(tuple, orders)))


def _checked_shares(
    placement: Placement, num_microbatches: int, shares: Sequence[Sequence[int]] | None
) -> Sequence[Sequence[int]]:
    if num_microbatches < 1:
        raise ScheduleError(f"evaluation needs at least one microbatch, got {num_microbatches}")
    if shares is None:
        return placement.split_microbatches(num_microbatches)
    if len(shares) != placement.replicas:
        raise ScheduleError(
            f"microbatches given for {len(shares)} replicas; the placement has {placement.replicas}"
        )
    if sorted(m for share in shares for m in share) != list(range(num_microbatches)):
        raise ScheduleError(
            f"replicas read microbatches {[list(share) for share in shares]}; together they must "
            f"read each of 0..{num_microbatches - 1} once"
        )
    return shares

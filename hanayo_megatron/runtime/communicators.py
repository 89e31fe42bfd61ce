"""NCCL communicators of a pipeline, made and warmed up before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from hanayo_megatron.schedule.placement import Placement


def communicating_pairs(placement: Placement) -> list[tuple[int, int]]:
    """Pairs of ranks (low, high) between which tensors move, in the order of their creation."""
    model_stages = placement.model_stages
    pairs = {
        tuple(sorted((placement.rank_of[stage], placement.rank_of[stage + 1])))
        for stage in range(placement.num_stages)
        if (stage + 1) % model_stages
    }
    return sorted((low, high) for low, high in pairs if low != high)


def connect_pairs(
    group: dist.ProcessGroup, placement: Placement
) -> Mapping[int, dist.ProcessGroup]:
    """A communicator for each pair of ranks that exchange tensors; by peer, those of this rank.

    Called by all ranks of the pipeline. Each rank goes through its pairs in one order common to
    all ranks, and connects while it does: of all pairs that ranks wait for, the first one in that
    order can always go on.
    """
    rank = group.rank()
    connected = {}
    for pair in communicating_pairs(placement):
        if rank not in pair:
            continue
        global_ranks = [dist.get_global_rank(group, member) for member in pair]
        both = dist.new_group(
            global_ranks, use_local_synchronization=True, timeout=timeout_of(group)
        )
        _warm_up(both)
        connected[pair[1] if rank == pair[0] else pair[0]] = both
    return connected


def connect_group(group: dist.ProcessGroup) -> None:
    """Connect one communicator for all transfers of a pipeline; called by all its ranks.

    NCCL connects a group at its first use, which all ranks must take part in.
    """
    _warm_up(group)


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """How long operations of a group may take.

    A new group has PyTorch's default unless it is told another one; those beside Megatron's are to
    be as patient as Megatron's (``--distributed-timeout-minutes``).
    """
    device = "cuda" if dist.get_backend(group) == dist.Backend.NCCL else "cpu"
    return group._get_backend(torch.device(device)).options._timeout


def _warm_up(group: dist.ProcessGroup) -> None:
    """Make NCCL connect, for collectives and for transfers in both directions."""
    device = torch.cuda.current_device()
    number = torch.ones(1, device=device)
    dist.all_reduce(number, group=group)
    rank, size = group.rank(), group.size()
    after, before = (rank + 1) % size, (rank - 1) % size
    operations = [
        dist.P2POp(dist.isend, number, group=group, group_peer=after),
        dist.P2POp(dist.irecv, torch.empty_like(number), group=group, group_peer=before),
        dist.P2POp(dist.isend, number, group=group, group_peer=before),
        dist.P2POp(dist.irecv, torch.empty_like(number), group=group, group_peer=after),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    torch.cuda.synchronize()

"""Ranks that mirror each other: r and P-1-r hold the same pieces of two copies of the model."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from hanayo_megatron.megatron.swap import swap_with
from hanayo_megatron.runtime.communicators import timeout_of


def is_mirror_image() -> bool:
    """Whether this rank is in the upper half, so that what it holds counts as the second copy.

    One half as a whole, not one replica: then the first copy of everything is on the ranks with
    the lower numbers, which come first in every joined group.
    """
    group = parallel_state.get_pipeline_model_parallel_group()
    return group.rank() >= group.size() // 2


def swap_with_mirror(tensor: torch.Tensor) -> torch.Tensor:
    """The mirror's tensor of the same shape and type, in exchange for this rank's."""
    group = parallel_state.get_pipeline_model_parallel_group()
    return swap_with(group.size() - 1 - group.rank(), tensor)


class MirrorGroups:
    """Data-parallel groups of a rank, joined with those of its mirror."""

    def __init__(self) -> None:
        self._joined: dict[tuple[tuple[int, ...], str], dist.ProcessGroup] = {}

    def join(self, group: dist.ProcessGroup) -> dist.ProcessGroup:
        """The ranks of a data-parallel group and of the mirror's group of the same kind.

        Every rank of the world must join its groups in the same order.
        """
        ranks = tuple(dist.get_process_group_ranks(group))
        key = (ranks, dist.get_backend(group))
        if key not in self._joined:
            self._joined[key] = _create(ranks, like=group)
        return self._joined[key]


def _create(ranks: tuple[int, ...], *, like: dist.ProcessGroup) -> dist.ProcessGroup:
    pipeline = parallel_state.get_pipeline_model_parallel_group()
    mirror = dist.get_process_group_ranks(pipeline)[pipeline.size() - 1 - pipeline.rank()]
    told: list[tuple[int, ...]] = [()] * dist.get_world_size()
    dist.all_gather_object(told, ranks)
    mirrors: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(mirrors, mirror)
    joined = [tuple(sorted({*mine, *told[peer]})) for mine, peer in zip(told, mirrors, strict=True)]
    backend, timeout = dist.get_backend(like), timeout_of(like)
    created = {
        members: dist.new_group(list(members), backend=backend, timeout=timeout)
        for members in sorted(set(joined))
    }
    return created[joined[dist.get_rank()]]

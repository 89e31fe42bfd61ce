"""Groups on the network of the hosts: nothing that goes over them waits for a GPU."""

from __future__ import annotations

from functools import cache

import torch.distributed as dist

from hanayo_megatron.runtime.communicators import timeout_of


@cache
def all_hosts() -> dist.ProcessGroup:
    """All ranks; called by all of them."""
    if dist.get_backend() == dist.Backend.GLOO:
        return dist.group.WORLD
    return dist.new_group(backend="gloo", timeout=timeout_of(dist.group.WORLD))


@cache
def hosts_of(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """The ranks of a group; called by all of them."""
    if dist.get_backend(group) == dist.Backend.GLOO:
        return group
    ranks = dist.get_process_group_ranks(group)
    return dist.new_group(
        ranks, backend="gloo", use_local_synchronization=True, timeout=timeout_of(group)
    )

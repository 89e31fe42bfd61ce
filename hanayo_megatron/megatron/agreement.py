"""Ranks agree on every step's number of microbatches, or all of them stop."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hanayo_megatron.megatron.host_network import all_hosts
from hanayo_megatron.runtime.agreement import DisagreementError


def agree_on_microbatches(num_microbatches: int) -> None:
    """Raise DisagreementError on every rank if any two ranks run another number of microbatches.

    One reduction of two numbers over the network of the hosts; nothing waits for a GPU.
    """
    group = all_hosts()
    extremes = torch.tensor([num_microbatches, -num_microbatches])
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
    most, least = extremes[0].item(), -extremes[1].item()
    if most == least:
        return
    counts: list[int] = [0] * dist.get_world_size(group)
    dist.all_gather_object(counts, num_microbatches, group=group)
    told = "; ".join(
        f"{count} on ranks {', '.join(str(r) for r, c in enumerate(counts) if c == count)}"
        for count in sorted(set(counts))
    )
    raise DisagreementError(
        f"ranks disagree on the number of microbatches of this step: {told}. All data-parallel "
        "replicas must run the same number; pad with microbatches whose loss mask is zero"
    )

"""Two ranks of the pipeline give each other a tensor."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core import parallel_state


def swap_with(peer: int, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of the same shape and type of another pipeline rank, in exchange for this one."""
    group = parallel_state.get_pipeline_model_parallel_group()
    mine = tensor.detach().contiguous()
    theirs = torch.empty_like(mine)
    operations = [
        dist.P2POp(dist.isend, mine, group=group, group_peer=peer),
        dist.P2POp(dist.irecv, theirs, group=group, group_peer=peer),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return theirs

"""Ranks agree on what they do in a step, or all of them stop."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hanayo_megatron.megatron.host_network import all_hosts
from hanayo_megatron.runtime.agreement import DisagreementError


def agree_on_step(*, num_microbatches: int, announces_shapes: bool) -> None:
    """Raise DisagreementError on every rank if any two ranks are to run different steps.

    One reduction of a few numbers over the network of the hosts; nothing waits for a GPU.
    """
    group = all_hosts()
    mine = torch.tensor([num_microbatches, announces_shapes], dtype=torch.int64)
    extremes = torch.cat([mine, -mine])
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
    most, least = extremes[:2], -extremes[2:]
    if torch.equal(most, least):
        return
    given: list[list[int]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(given, mine.tolist(), group=group)
    counts, announcing = ([values[n] for values in given] for n in range(2))
    if len(set(counts)) > 1:
        raise DisagreementError(
            f"ranks disagree on the number of microbatches of this step: {_who(counts)}. All "
            "data-parallel replicas must run the same number; pad with microbatches whose loss "
            "mask is zero"
        )
    raise DisagreementError(
        "ranks disagree on whether tensors between stages have other shapes than configured: "
        f"{_who(['yes' if told else 'no' for told in announcing])}. Give adjust_tensor_shapes_fn, "
        "and variable_seq_lengths of the model's configuration, on every rank or on none"
    )


def _who(values: list[int] | list[str]) -> str:
    return "; ".join(
        f"{value} on ranks {', '.join(str(r) for r, v in enumerate(values) if v == value)}"
        for value in sorted(set(values))
    )

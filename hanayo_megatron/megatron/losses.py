"""Brings what the last stages collected to the rank on which Megatron logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


def collect_on_rank(
    collected: dict[int, list], *, sources: Sequence[int], target: int, group: dist.ProcessGroup
) -> list:
    """Join what the ranks with a last stage collected by microbatch.

    Returns the items in the order of microbatches on ``target``, an empty list on other ranks.
    """
    if group.rank() not in (*sources, target):
        return []
    found = dict(collected)
    for source in sources:
        if source != target:
            for part in move_to_rank([collected], source=source, target=target, group=group):
                found |= part
    if group.rank() != target:
        return []
    return [item for _, items in sorted(found.items()) for item in items]


def move_to_rank(values: list, *, source: int, target: int, group: dist.ProcessGroup) -> list:
    """Move a list of (nested) losses from one rank of the pipeline to another.

    Returns the list on ``target`` and an empty list on every other rank. Tensors keep their type
    and arrive on the receiver's own device.
    """
    rank = group.rank()
    if source == target:
        return values if rank == target else []
    device = torch.cuda.current_device()
    if rank == source:
        tensors: list[torch.Tensor] = []
        outline = [_outline(values, tensors)]
        dist.send_object_list(outline, group=group, group_dst=target, device=device)
        for tensor in tensors:
            dist.send(tensor, group=group, group_dst=target)
        return []
    if rank == target:
        received: list[Any] = [None]
        dist.recv_object_list(received, group=group, group_src=source, device=device)
        return _filled(received[0], source=source, group=group)
    return []


class _Hole(tuple):
    """Shape and dtype of a tensor that is sent beside the outline."""


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().contiguous())
        return _Hole((tuple(value.shape), value.dtype))
    if isinstance(value, dict):
        return {key: _outline(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_outline(item, tensors) for item in value)
    return value


def _filled(outline: Any, *, source: int, group: dist.ProcessGroup) -> Any:
    if isinstance(outline, _Hole):
        shape, dtype = outline
        tensor = torch.empty(shape, dtype=dtype, device=torch.cuda.current_device())
        dist.recv(tensor, group=group, group_src=source)
        return tensor
    if isinstance(outline, dict):
        return {key: _filled(item, source=source, group=group) for key, item in outline.items()}
    if isinstance(outline, (list, tuple)):
        return type(outline)(_filled(item, source=source, group=group) for item in outline)
    return outline

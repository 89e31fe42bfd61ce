"""Checkpoints of a pipeline that holds two copies of the model: each weight once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedBase

from hanayo_megatron.errors import HanayoError
from hanayo_megatron.megatron.hooks import Hook
from hanayo_megatron.megatron.mirror import is_mirror_image, swap_with_mirror


class ReplicaError(HanayoError, RuntimeError):
    """The two copies of the model are not copies."""


def replica_checkpoint_hooks() -> list[Hook]:
    """Hooks on what is saved, and on what was loaded."""
    module = "megatron.training.checkpointing"
    return [
        Hook(f"{module}:generate_state_dict", ("args", "model", "optimizer"), _marking_second_copy),
        Hook(f"{module}:load_checkpoint", ("ddp_model",), _comparing_copies),
    ]


def _marking_second_copy(original: Callable) -> Callable:
    def generate_state_dict(
        args: Any, model: list[torch.nn.Module], *rest: Any, **named: Any
    ) -> dict[str, Any]:
        if is_mirror_image():
            model = [_SecondCopy(chunk) for chunk in model]
        return original(args, model, *rest, **named)

    return generate_state_dict


@dataclass(frozen=True)
class _SecondCopy:
    """A chunk whose tensors are loaded, but saved by the rank that holds the first copy."""

    chunk: torch.nn.Module

    def sharded_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state = self.chunk.sharded_state_dict(*args, **kwargs)
        for part in nested_values(state):
            if isinstance(part, ShardedBase):
                part.replica_id = _second(part.replica_id)
        return state

    def state_dict_for_save_checkpoint(self) -> dict[str, Any]:
        return self.chunk.state_dict_for_save_checkpoint()


def _second(replica_id: int | tuple[int, ...]) -> int | tuple[int, ...]:
    if isinstance(replica_id, int):
        return replica_id + 1
    return (replica_id[0] + 1, *replica_id[1:])


def _comparing_copies(original: Callable) -> Callable:
    def load_checkpoint(ddp_model: list[torch.nn.Module], *args: Any, **kwargs: Any) -> Any:
        loaded = original(ddp_model, *args, **kwargs)
        check_copies(ddp_model)
        return loaded

    return load_checkpoint


def check_copies(model: list[torch.nn.Module]) -> None:
    """Raise ReplicaError on every rank, naming a weight, if any two copies of one differ."""
    different = None
    for chunk in model:
        for name, parameter in chunk.named_parameters():
            mine = parameter.data.to(torch.cuda.current_device())
            if not torch.equal(mine, swap_with_mirror(mine)):
                different = different or name
    found: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, different)
    ranks = [rank for rank, name in enumerate(found) if name is not None]
    if ranks:
        raise ReplicaError(
            f"the checkpoint has two copies of {found[ranks[0]]} with different values (on global "
            f"ranks {', '.join(map(str, ranks))}). The copies of a replicated pipeline must be "
            "equal; load a torch_dist checkpoint, which has every weight once"
        )

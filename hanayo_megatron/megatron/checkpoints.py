"""Checkpoints when one rank holds both copies of a shared weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor

from hanayo_megatron.megatron.hooks import Hook


def checkpoint_hooks() -> list[Hook]:
    """Megatron elects one data-parallel rank to save a tensor; here also one of its copies there.

    The last stage's copy of the embedding has the key of the first stage's. Megatron knows them in
    different data-parallel groups only, under waves they are on one rank.
    """
    return [
        Hook(
            "megatron.core.dist_checkpointing.strategies.fully_parallel"
            ":distribute_main_replicas_with_precomputed_distribution",
            ("sharded_state_dict", "parallelization_group", "precomputed_distribution"),
            _electing_one_copy,
        )
    ]


def _electing_one_copy(original: Callable) -> Callable:
    def distribute(sharded_state_dict: Any, *args: Any, **kwargs: Any) -> None:
        original(sharded_state_dict, *args, **kwargs)
        elected = set()
        for tensor in nested_values(sharded_state_dict):
            if not isinstance(tensor, ShardedTensor) or tensor.replica_id != 0:
                continue
            place = (tensor.key, tensor.global_offset)
            if place in elected:
                tensor.replica_id = 1
            elected.add(place)

    return distribute

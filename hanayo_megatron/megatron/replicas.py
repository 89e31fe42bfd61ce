"""Two copies of the model in one pipeline, trained as one.

Rank r and its mirror P-1-r hold the same two pieces of the model, in the same order of chunks. To
Megatron's gradients and optimizer the pair is data-parallel: every group that gradients, updated
parameters or optimizer state are shared over is joined with the mirror's. Megatron then sums
gradients over both copies once, shards optimizer state over 2·DP ranks, and walks the chunks of
both ranks of a pair in one order, so no collective can wait for the mirror's other one.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.process_groups_config import ProcessGroupCollection

from hanayo_megatron.megatron.hooks import Hook
from hanayo_megatron.megatron.mirror import MirrorGroups, is_mirror_image
from hanayo_megatron.megatron.replica_checkpoints import replica_checkpoint_hooks
from hanayo_megatron.megatron.replica_routers import replica_router_hooks

_REPLICAS = 2

_JOINED = ("dp", "dp_cp", "intra_dp_cp", "expt_dp", "intra_expt_dp")
"""Groups of Megatron's collection over which gradients and parameters are shared."""


def replica_hooks() -> list[Hook]:
    """Hooks for a placement with two copies of the model."""
    groups = MirrorGroups()
    return [
        Hook(
            "megatron.core.distributed.distributed_data_parallel:DistributedDataParallel",
            ("config", "ddp_config", "module", "disable_bucketing", "pg_collection"),
            _over_both_copies(groups),
        ),
        Hook(
            "megatron.core.optimizer:get_megatron_optimizer",
            ("config", "model_chunks"),
            _sharded_over_both_copies(groups),
        ),
        *replica_checkpoint_hooks(),
        *replica_router_hooks(),
    ]


def _over_both_copies(groups: MirrorGroups) -> Callable[[type], type]:
    def wrap(original: type) -> type:
        class ReplicaDataParallel(original):
            """Megatron's data parallelism over both copies of a chunk.

            Both start from the weights of the first rank. Gradients are summed over the copies and
            averaged over the rest: every microbatch's loss is scaled by the count on both. A chunk
            is one bucket, on the first rank too, so that both copies are cut into the same shards.
            """

            def __init__(
                self,
                config: Any,
                ddp_config: Any,
                module: torch.nn.Module,
                disable_bucketing: bool = False,
                pg_collection: ProcessGroupCollection | None = None,
                full_param_layout: Any = None,
            ) -> None:
                collection = _joined_collection(groups, pg_collection)
                if full_param_layout is not None:
                    full_param_layout = DistributedOptimizer.compute_full_param_layout(
                        [p for p in module.parameters() if p.requires_grad],
                        None,
                        collection.dp_cp.size(),
                        ddp_config,
                        expert_data_parallel_world_size=collection.expt_dp.size(),
                    )
                super().__init__(
                    config=config,
                    ddp_config=ddp_config,
                    module=module,
                    disable_bucketing=True,
                    pg_collection=collection,
                    full_param_layout=full_param_layout,
                )
                if not config.calculate_per_token_loss:
                    for buffer in self.buffers + self.expert_parallel_buffers:
                        for bucket in buffer.buckets:
                            bucket.gradient_scaling_factor *= _REPLICAS
                self.broadcast_params()

        return ReplicaDataParallel

    return wrap


def _joined_collection(
    groups: MirrorGroups, collection: ProcessGroupCollection | None
) -> ProcessGroupCollection:
    collection = copy(collection or ProcessGroupCollection.use_mpu_process_groups())
    for name in _JOINED:
        group = getattr(collection, name, None)
        if group is not None:
            setattr(collection, name, groups.join(group))
    return collection


def _sharded_over_both_copies(groups: MirrorGroups) -> Callable[[Callable], Callable]:
    def wrap(original: Callable) -> Callable:
        def get_megatron_optimizer(
            config: Any, model_chunks: list[torch.nn.Module], *args: Any, **kwargs: Any
        ) -> Any:
            if not config.use_distributed_optimizer and is_mirror_image():
                # Megatron leaves shared parameters out of norms, which count every rank's own.
                for chunk in model_chunks:
                    for parameter in chunk.parameters():
                        parameter.shared = True
            optimizer = original(config, model_chunks, *args, **kwargs)
            for part in getattr(optimizer, "chained_optimizers", [optimizer]):
                if isinstance(part, DistributedOptimizer) and not part.is_stub_optimizer:
                    _join_shards(groups, part)
            return optimizer

        return get_megatron_optimizer

    return wrap


def _join_shards(groups: MirrorGroups, optimizer: DistributedOptimizer) -> None:
    """Its buffers are sharded over the joined group already; saving must gather from there."""
    optimizer.data_parallel_group = groups.join(optimizer.data_parallel_group)
    if optimizer.data_parallel_group_gloo is not None:
        optimizer.data_parallel_group_gloo = groups.join(optimizer.data_parallel_group_gloo)
    pipeline = parallel_state.get_pipeline_model_parallel_group()
    indices: list[int] = [0] * pipeline.size()
    dist.all_gather_object(indices, optimizer.data_parallel_group_idx, group=pipeline)
    rank = pipeline.rank()
    optimizer.data_parallel_group_idx = indices[min(rank, pipeline.size() - 1 - rank)]

"""Megatron's flags under a pipeline that holds two copies of the model."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.schedule.schedule import ScheduleError

_REFUSED = {
    "overlap_param_gather_with_optimizer_step": (
        "--overlap-param-gather-with-optimizer-step",
        "mirror ranks would gather their chunks in different orders",
    ),
    "use_torch_fsdp2": ("--use-torch-fsdp2", "its shards are not joined over both copies"),
    "init_model_with_meta_device": (
        "--init-model-with-meta-device",
        "the copies are made equal before weights are loaded",
    ),
    "qk_clip": ("--qk-clip", "each copy's weights would be clipped by its own microbatches"),
    "log_params_norm": ("--log-params-norm", "Megatron would count every weight twice"),
    "mtp_num_layers": ("--mtp-num-layers", "further predictions were never tried with two copies"),
    "hybrid_layer_pattern": (
        "--hybrid-layer-pattern",
        "segments of a pattern were never tried with two copies",
    ),
}
"""Flags that do not know of a second copy, and why."""


def check_replica_flags(args: argparse.Namespace, pipeline: Pipeline) -> None:
    """Raise ScheduleError for a flag that a pipeline with two copies of the model cannot serve."""
    if pipeline.placement.replicas == 1:
        return
    refused = [text for name, text in _REFUSED.items() if getattr(args, name, False)]
    if getattr(args, "num_distributed_optimizer_instances", 1) > 1:
        refused.append(
            (
                f"--num-distributed-optimizer-instances {args.num_distributed_optimizer_instances}",
                "optimizer state is shared out over both copies, which is one instance",
            )
        )
    optimizer = getattr(args, "optimizer", "adam")
    sharded = getattr(args, "use_distributed_optimizer", False)
    if optimizer == "dist_muon" or (sharded and optimizer not in ("adam", "sgd")):
        refused.append(
            (
                f"--optimizer {optimizer}{' --use-distributed-optimizer' if sharded else ''}",
                "whole layers of its state are not shared out over both copies",
            )
        )
    if args.overlap_param_gather and not args.align_param_gather:
        refused.append(
            ("--no-align-param-gather", "mirror ranks must gather their chunks in one order")
        )
    balancing = args.moe_router_load_balancing_type
    kinds = [balancing] if isinstance(balancing, str) else list(balancing or ())
    for kind in ("global_aux_loss", "quantile_balancing"):
        if kind in kinds:
            refused.append(
                (
                    f"--moe-router-load-balancing-type {kind}",
                    "it counts the tokens of a step's microbatches one after another",
                )
            )
    for flag, reason in refused:
        raise ScheduleError(
            f"{flag} does not work with --pipeline-schedule {pipeline.name}, which trains two "
            f"copies of the model: {reason}. Drop one of them"
        )


@contextmanager
def chunks_named(args: argparse.Namespace, pipeline: Pipeline | None) -> Iterator[None]:
    """While Megatron validates ``args``, say how many chunks a rank has.

    Megatron counts chunks by the stages of the layout, which names each piece of the model once.
    """
    if pipeline is None or pipeline.placement.replicas == 1:
        yield
        return
    layout, args.pipeline_model_parallel_layout = args.pipeline_model_parallel_layout, None
    args.num_virtual_stages_per_pipeline_rank = pipeline.num_chunks
    yield
    args.num_virtual_stages_per_pipeline_rank = None
    args.pipeline_model_parallel_layout = layout

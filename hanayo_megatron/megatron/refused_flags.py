"""Megatron's flags that cannot work with a schedule of ours, and why."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from hanayo_megatron.schedule.schedule import ScheduleError

REFUSED: Mapping[str, str] = {
    "overlap_moe_expert_parallel_comm": (
        "it runs Megatron's own combined forward and backward schedule"
    ),
    "delay_wgrad_compute": ("it belongs to Megatron's own combined forward and backward schedule"),
    "enable_cuda_graph": "graphs are captured in Megatron's own order of chunks",
    "external_cuda_graph": "graphs are captured in Megatron's own order of chunks",
    "fine_grained_activation_offloading": (
        "it derives the order of backwards from Megatron's own schedule"
    ),
    "moe_paged_stash": "it records Megatron's own order of chunks",
    "moe_expert_rank_capacity_factor": (
        "it wraps the schedule to run again on overflow and records Megatron's own order of chunks"
    ),
    "use_megatron_fsdp": "it was never tried with a pipeline of ours",
    "overlap_param_gather_with_optimizer_step": (
        "it needs Megatron's legacy checkpoints, which belong to one split of the model"
    ),
    "logits_save_dir": "Megatron saves the logits of the last rank's last chunk",
    "logits_load_dir": "Megatron compares with the logits of the last rank's last chunk",
    "perform_rl_step": (
        "its rollouts run Megatron's inference, which runs the first chunk of every rank only"
    ),
    "microbatch_group_size_per_vp_stage": (
        "the schedule says in which order chunks run (--pipeline-schedule breadth-first runs all "
        "microbatches of a chunk in one go)"
    ),
    "use_ring_exchange_p2p": "the schedule brings its own transfers",
    "inprocess_restart": "communicators for transfers are made once a process",
    "hybrid_override_pattern": "Megatron has renamed it; --hybrid-layer-pattern works",
    "decoder_num_layers": (
        "the layers of models of an encoder and a decoder (T5) are not split over stages"
    ),
    "use_checkpoint_args": (
        "a checkpoint's pipeline layout belongs to the schedule that it was saved under"
    ),
    "use_mp_args_from_checkpoint_args": (
        "a checkpoint's pipeline layout belongs to the schedule that it was saved under"
    ),
}
"""By Megatron's name of the argument: why no schedule of ours can have it."""

CHOICES: Mapping[str, tuple[tuple[str | None, ...], str]] = {
    "cuda_graph_impl": (
        ("none", None),
        "graphs are captured in Megatron's own order of chunks",
    ),
    "ckpt_format": (
        ("torch_dist",),
        "such checkpoints belong to one split of the model and load wrong layers under another",
    ),
    "ckpt_convert_format": (
        ("torch_dist", None),
        "such checkpoints belong to one split of the model and load wrong layers under another",
    ),
    "non_persistent_ckpt_type": (
        ("global", None),
        "every rank saves its own layers, and would load wrong ones under another schedule",
    ),
    "pipeline_model_parallel_comm_backend": (
        ("nccl", None),
        "transfers were written for NCCL and gloo",
    ),
}
"""The values that work, and why no others do."""

_WEIGHT_SHARDS = {
    "tensor_parallel_num_weight_shards": "tensor_model_parallel_size",
    "expert_tensor_parallel_num_weight_shards": "expert_tensor_parallel_size",
}
"""By flag, the size that means ordinary tensor parallelism."""


def refuse_flags(args: argparse.Namespace, chosen: str) -> None:
    """Raise ScheduleError for the first flag that does not work with ``chosen``, with the reason.

    Args:
        args: Megatron's arguments before their validation.
        chosen: the flag that chose the schedule, for the message.
    """
    for name, reason in REFUSED.items():
        if getattr(args, name, None):
            raise ScheduleError(
                f"{_flag(name)} does not work with {chosen}: {reason}. Drop one of them"
            )
    for name, (allowed, reason) in CHOICES.items():
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            raise ScheduleError(
                f"{_flag(name)} {value} does not work with {chosen}: {reason}. Use "
                f"{_flag(name)} {allowed[0]}, or drop {chosen}"
            )
    for name, unsharded in _WEIGHT_SHARDS.items():
        size = getattr(args, unsharded, None) or args.tensor_model_parallel_size
        shards = getattr(args, name, None)
        if shards not in (None, size):
            raise ScheduleError(
                f"{_flag(name)} {shards} does not work with {chosen}: Megatron gathers the shards "
                "in one order, which several chunks on a rank do not keep. Drop one of them"
            )


def _flag(name: str) -> str:
    if name == "microbatch_group_size_per_vp_stage":
        return "--microbatch-group-size-per-virtual-pipeline-stage"
    return f"--{name.replace('_', '-')}"

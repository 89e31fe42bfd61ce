"""Checkpoints: one copy of a shared weight is saved, optimizer state goes to its own parameters."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.training import get_args
from megatron.training.checkpointing import CheckpointType

from hanayo_megatron.errors import HanayoError
from hanayo_megatron.megatron.hooks import Hook
from hanayo_megatron.megatron.split import layout_string
from hanayo_megatron.schedule.placement import Placement, looped
from hanayo_megatron.schedule.registry import build_schedule
from hanayo_megatron.schedule.schedule import ScheduleError, ScheduleSpec

_ANY_MICROBATCHES = 4
"""A rank, of a schedule whose placement only is asked for."""


def checkpoint_hooks() -> list[Hook]:
    """Megatron elects one data-parallel rank to save a tensor; here also one of its copies there.

    The last stage's copy of the embedding has the key of the first stage's. Megatron knows them in
    different data-parallel groups only, under waves they are on one rank.

    And Megatron's default format of the distributed optimizer knows state by its position on a
    rank, so that another schedule would give it to other layers of the same size. In its legacy
    format it knows weights by their position, and leaves chunks that it finds none for as they are.
    """
    return [
        Hook(
            "megatron.core.dist_checkpointing.strategies.fully_parallel"
            ":distribute_main_replicas_with_precomputed_distribution",
            ("sharded_state_dict", "parallelization_group", "precomputed_distribution"),
            _electing_one_copy,
        ),
        Hook(
            "megatron.training.checkpointing:check_checkpoint_args",
            ("checkpoint_args",),
            _checking_placement,
        ),
        Hook(
            "megatron.training.checkpointing:_load_base_checkpoint",
            ("load_dir", "args"),
            _refusing_legacy,
        ),
    ]


def check_optimizer_format(args: argparse.Namespace, saved: argparse.Namespace) -> None:
    """Raise CheckpointError if optimizer state belongs to other parameters than it would go to.

    Args:
        args: of this training.
        saved: of the training that saved the checkpoint.
    """
    by_position = args.use_distributed_optimizer and not getattr(
        saved, "dist_ckpt_optim_fully_reshardable", False
    )
    if not by_position or args.finetune or args.no_load_optim:
        return
    if getattr(saved, "no_save_optim", False) or _stages(args) == _stages(saved):
        return
    raise CheckpointError(
        f"the optimizer state in --load {args.load} was saved by position on a rank, under "
        f"{_described(saved)}; under {_described(args)} it would go to other layers. Save with "
        "--dist-ckpt-optim-fully-reshardable, or load with --no-load-optim"
    )


def _stages(args: argparse.Namespace) -> tuple[Placement | None, str | None]:
    """Which rank holds which stage, and what is in the stages."""
    try:
        placement = _placement(args)
    except ScheduleError:
        return None, args.pipeline_schedule  # a user's, not known to this training
    layout = args.pipeline_model_parallel_layout
    each, left = divmod(args.num_layers, placement.model_stages)
    if layout is None and not left:
        further = args.mtp_num_layers or 0
        layout = layout_string([each] * placement.model_stages, mtp_num_layers=further)
    return placement, layout


def _placement(args: argparse.Namespace) -> Placement:
    num_ranks = args.pipeline_model_parallel_size
    name = getattr(args, "pipeline_schedule", None)
    if name is None:
        return looped(num_ranks, args.virtual_pipeline_model_parallel_size or 1)
    spec = ScheduleSpec(
        pp=num_ranks,
        microbatches=_ANY_MICROBATCHES * num_ranks,
        waves=args.num_waves or ScheduleSpec.waves,
        chunks=args.num_chunks or ScheduleSpec.chunks,
    )
    return build_schedule(name, spec).placement


def _described(args: argparse.Namespace) -> str:
    name = getattr(args, "pipeline_schedule", None)
    parts = [f"--pipeline-schedule {name}" if name else "Megatron's own schedule"]
    for flag in ("num_waves", "num_chunks", "pipeline_model_parallel_layout"):
        if getattr(args, flag, None) is not None:
            parts.append(f"--{flag.replace('_', '-')} {getattr(args, flag)}")
    return " ".join(parts)


class CheckpointError(HanayoError, RuntimeError):
    """A checkpoint that this schedule cannot continue."""


def _checking_placement(original: Callable) -> Callable:
    def check_checkpoint_args(checkpoint_args: argparse.Namespace, *rest: Any, **named: Any) -> Any:
        check_optimizer_format(get_args(), checkpoint_args)
        return original(checkpoint_args, *rest, **named)

    return check_checkpoint_args


def _refusing_legacy(original: Callable) -> Callable:
    def load_base_checkpoint(load_dir: str, *rest: Any, **named: Any) -> tuple:
        """As Megatron's: state, name, whether it is a release, and the type found on disk."""
        found = original(load_dir, *rest, **named)
        if found[-1] is CheckpointType.LEGACY:
            raise CheckpointError(
                f"the checkpoint in {load_dir} has Megatron's legacy format, which belongs to one "
                "split of the model. Load it under the schedule that saved it, without "
                "--pipeline-schedule, with --ckpt-convert-format torch_dist and "
                "--ckpt-convert-save, and train from what that writes"
            )
        return found

    return load_base_checkpoint


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

"""Checkpoints: one copy of a shared weight is saved, optimizer state goes to its own parameters."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.training import get_args

from hanayo_megatron import flags
from hanayo_megatron.errors import HanayoError
from hanayo_megatron.megatron.hooks import Hook

_PLACE_STAGES = (
    flags.SCHEDULE,
    flags.WAVES,
    flags.CHUNKS,
    "--pipeline-model-parallel-size",
    "--pipeline-model-parallel-layout",
)


def checkpoint_hooks() -> list[Hook]:
    """Megatron elects one data-parallel rank to save a tensor; here also one of its copies there.

    The last stage's copy of the embedding has the key of the first stage's. Megatron knows them in
    different data-parallel groups only, under waves they are on one rank.

    And Megatron's default format of the distributed optimizer knows state by its position on a
    rank, so that another schedule would give it to other layers of the same size.
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
    ]


def check_optimizer_format(args: argparse.Namespace, saved: argparse.Namespace) -> None:
    """Raise CheckpointError if optimizer state belongs to other parameters than it would go to.

    Args:
        args: of this training.
        saved: of the training that saved the checkpoint.
    """
    by_position = args.use_distributed_optimizer and not saved.dist_ckpt_optim_fully_reshardable
    if not by_position or args.finetune or args.no_load_optim or saved.no_save_optim:
        return
    for flag in _PLACE_STAGES:
        name = flag.removeprefix("--").replace("-", "_")
        ours, theirs = getattr(args, name, None), getattr(saved, name, None)
        if ours != theirs:
            raise CheckpointError(
                f"the optimizer state in --load {args.load} was saved under "
                f"{flag} {theirs} by position on a rank; under {flag} {ours} it would go to other "
                "layers. Save with --dist-ckpt-optim-fully-reshardable, or load with "
                "--no-load-optim"
            )


class CheckpointError(HanayoError, RuntimeError):
    """A checkpoint that this schedule cannot continue."""


def _checking_placement(original: Callable) -> Callable:
    def check_checkpoint_args(checkpoint_args: argparse.Namespace, *rest: Any, **named: Any) -> Any:
        check_optimizer_format(get_args(), checkpoint_args)
        return original(checkpoint_args, *rest, **named)

    return check_checkpoint_args


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

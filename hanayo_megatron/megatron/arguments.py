"""The plug-in's flags among Megatron's, and what they demand of the others."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
from megatron.training.checkpointing import checkpoint_exists

from hanayo_megatron import flags
from hanayo_megatron.megatron.layout import even_layout
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.megatron.replica_arguments import check_replica_flags
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.schedule.registry import (
    build_schedule,
    load_schedule_module,
    schedule_names,
)
from hanayo_megatron.schedule.schedule import ScheduleError, ScheduleSpec

_TRACKER = "latest_checkpointed_iteration.txt"

_CONFLICTS = {
    "num_layers_per_virtual_pipeline_stage": "--num-layers-per-virtual-pipeline-stage",
    "num_virtual_stages_per_pipeline_rank": "--num-virtual-stages-per-pipeline-rank",
    "decoder_first_pipeline_num_layers": "--decoder-first-pipeline-num-layers",
    "decoder_last_pipeline_num_layers": "--decoder-last-pipeline-num-layers",
    "account_for_embedding_in_pipeline_split": "--account-for-embedding-in-pipeline-split",
    "account_for_loss_in_pipeline_split": "--account-for-loss-in-pipeline-split",
}
"""Flags that lay out stages themselves."""

_REFUSED = {
    "overlap_moe_expert_parallel_comm": (
        "--overlap-moe-expert-parallel-comm",
        "it runs Megatron's own combined forward and backward schedule",
    ),
    "fine_grained_activation_offloading": (
        "--fine-grained-activation-offloading",
        "it derives the order of backwards from Megatron's own schedule",
    ),
    "moe_paged_stash": ("--moe-paged-stash", "it records Megatron's own order of chunks"),
    "use_megatron_fsdp": ("--use-megatron-fsdp", "it was never tried with a pipeline of ours"),
    "hybrid_layer_pattern": (
        "--hybrid-layer-pattern",
        "hybrid models do not read the pipeline layout; their segments are not placed yet",
    ),
    "mtp_num_layers": ("--mtp-num-layers", "multi-token prediction is not placed yet"),
    "use_checkpoint_args": (
        "--use-checkpoint-args",
        "a checkpoint's pipeline layout belongs to the schedule that it was saved under",
    ),
}
"""Flags that cannot work with any schedule of ours, and why."""


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the group "pipeline schedule" to Megatron's parser."""
    group = parser.add_argument_group(
        "pipeline schedule", "Schedules by hanayo_megatron in place of Megatron's own."
    )
    group.add_argument(
        flags.SCHEDULE,
        metavar="NAME",
        help=f"Train under this schedule. Known: {', '.join(schedule_names())}.",
    )
    group.add_argument(
        flags.WAVES,
        type=int,
        metavar="W",
        help="Waves of a wave schedule; every rank holds 2W stages. Default 1.",
    )
    group.add_argument(
        flags.CHUNKS,
        type=int,
        metavar="V",
        help="Stages a rank holds under a looped schedule (interleaved, ...). Default 2.",
    )
    group.add_argument(
        flags.MODULE,
        metavar="MODULE",
        help="Import this module on every rank; its @register_schedule functions become known.",
    )
    return parser


def resolve_pipeline(args: argparse.Namespace) -> Pipeline | None:
    """Read the flags, check them against Megatron's, and lay out the stages in ``args``.

    Returns None without ``--pipeline-schedule``. Raises ScheduleError naming the values and what
    is legal.
    """
    if args.pipeline_schedule_module is not None:
        load_schedule_module(args.pipeline_schedule_module)
    if args.pipeline_schedule is None:
        for flag, value in ((flags.WAVES, args.num_waves), (flags.CHUNKS, args.num_chunks)):
            if value is not None:
                raise ScheduleError(f"{flag} {value} needs --pipeline-schedule")
        return None
    name, num_ranks = args.pipeline_schedule, args.pipeline_model_parallel_size
    if num_ranks < 2:
        raise ScheduleError(
            f"--pipeline-schedule {name} needs --pipeline-model-parallel-size of at least 2, "
            f"got {num_ranks}"
        )
    _check_other_flags(args)
    _check_checkpoint(args)
    spec = ScheduleSpec(
        pp=num_ranks,
        microbatches=_expected_microbatches(args),
        **_given(waves=args.num_waves, chunks=args.num_chunks),
    )
    _check_used(name, spec, args)
    pipeline = Pipeline(name, spec)
    check_replica_flags(args, pipeline)
    _lay_out(args, pipeline)
    return pipeline


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _expected_microbatches(args: argparse.Namespace) -> int:
    ranks_per_replica = (
        args.tensor_model_parallel_size
        * args.pipeline_model_parallel_size
        * args.context_parallel_size
    )
    samples = (args.micro_batch_size or 1) * max(args.world_size // ranks_per_replica, 1)
    return max((args.global_batch_size or samples) // samples, 1)


def _check_other_flags(args: argparse.Namespace) -> None:
    chosen = f"--pipeline-schedule {args.pipeline_schedule}"
    for name, flag in _CONFLICTS.items():
        value = getattr(args, name, None)
        if value is not None and value is not False:
            raise ScheduleError(
                f"{flag} {'' if value is True else value} conflicts with {chosen}: the schedule "
                "lays out the stages. Drop it; for an uneven split give "
                "--pipeline-model-parallel-layout in stage order"
            )
    for name, (flag, reason) in _REFUSED.items():
        if getattr(args, name, None):
            raise ScheduleError(f"{flag} does not work with {chosen}: {reason}. Drop one of them")
    if getattr(args, "cuda_graph_impl", "none") not in ("none", None):
        raise ScheduleError(
            f"--cuda-graph-impl {args.cuda_graph_impl} does not work with {chosen}: graphs are "
            "captured in Megatron's own order of chunks. Drop one of them"
        )


def _check_checkpoint(args: argparse.Namespace) -> None:
    """Megatron would start from random weights, or end with exit code 0."""
    if not args.load or not (args.finetune or args.exit_on_missing_checkpoint):
        return
    if not checkpoint_exists(args.load):
        raise ScheduleError(
            f"--load {args.load}: there is no checkpoint (no {_TRACKER}), and "
            f"{'--finetune' if args.finetune else '--exit-on-missing-checkpoint'} needs one"
        )


def _check_used(name: str, spec: ScheduleSpec, args: argparse.Namespace) -> None:
    """Refuse --num-waves or --num-chunks for a schedule that has none."""
    for flag, value, field in (
        (flags.WAVES, args.num_waves, "waves"),
        (flags.CHUNKS, args.num_chunks, "chunks"),
    ):
        if value is None:
            continue
        other = replace(spec, **{field: value + 1})
        if build_schedule(name, spec).placement == build_schedule(name, other).placement:
            raise ScheduleError(f"{flag} {value} means nothing to schedule {name!r}; drop it")


def _lay_out(args: argparse.Namespace, pipeline: Pipeline) -> None:
    """Write the layout string, in stage order, that makes Megatron build the stages."""
    placement = pipeline.placement
    num_stages = placement.model_stages
    if args.pipeline_model_parallel_layout is not None:
        given = PipelineParallelLayerLayout.get_num_stages_from_str(
            args.pipeline_model_parallel_layout
        )
        if given != num_stages:
            raise ScheduleError(
                f"--pipeline-model-parallel-layout has {given} stages; schedule "
                f"{pipeline.name!r} needs {num_stages} on {placement.num_ranks} ranks, in stage "
                "order"
            )
        return
    num_layers = args.num_layers
    if num_layers is None:
        raise ScheduleError(f"--pipeline-schedule {pipeline.name} needs --num-layers")
    if num_layers % num_stages:
        raise ScheduleError(_uneven(args, pipeline, num_layers, num_stages))
    if _needs_layout(placement):
        args.pipeline_model_parallel_layout = even_layout(num_layers, num_stages)


def _needs_layout(placement: Placement) -> bool:
    return placement.rank_of != tuple(range(placement.num_ranks))


def _uneven(args: argparse.Namespace, pipeline: Pipeline, num_layers: int, num_stages: int) -> str:
    below = num_layers // num_stages * num_stages
    legal = [str(n) for n in (below, below + num_stages) if n]
    text = (
        f"--num-layers {num_layers} does not divide into the {num_stages} stages of "
        f"--pipeline-schedule {pipeline.name} on {pipeline.placement.num_ranks} ranks; nearest "
        f"legal --num-layers: {' or '.join(legal)}"
    )
    if args.num_waves is not None:
        per_wave = num_stages // args.num_waves
        fits = [str(w) for w in range(1, num_layers + 1) if num_layers % (w * per_wave) == 0]
        if fits:
            text += f"; or --num-waves {' or '.join(fits)}"
    return (
        text + "; or give the split yourself with --pipeline-model-parallel-layout in stage order"
    )

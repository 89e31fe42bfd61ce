"""The plug-in's flags among Megatron's, and what they demand of the others."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from typing import Any

from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
from megatron.training.checkpointing import checkpoint_exists

from hanayo_megatron import flags
from hanayo_megatron.megatron.hybrid import placed_pattern
from hanayo_megatron.megatron.job_options import add_job_arguments
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.megatron.refused_flags import refuse_flags
from hanayo_megatron.megatron.replica_arguments import check_replica_flags
from hanayo_megatron.megatron.split import (
    embedding_cost,
    head_cost,
    layout_string,
    split_layers,
)
from hanayo_megatron.schedule.registry import (
    build_schedule,
    load_schedule_module,
    schedule_names,
)
from hanayo_megatron.schedule.schedule import ScheduleError, ScheduleSpec

logger = logging.getLogger(__name__)

_TRACKER = "latest_checkpointed_iteration.txt"

_CONFLICTS = {
    "num_layers_per_virtual_pipeline_stage": "--num-layers-per-virtual-pipeline-stage",
    "num_virtual_stages_per_pipeline_rank": "--num-virtual-stages-per-pipeline-rank",
    "decoder_first_pipeline_num_layers": "--decoder-first-pipeline-num-layers",
    "decoder_last_pipeline_num_layers": "--decoder-last-pipeline-num-layers",
}
"""Flags that lay out stages themselves."""


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
    add_job_arguments(group)
    _mend_help(parser)
    return parser


def resolve_pipeline(args: argparse.Namespace) -> Pipeline | None:
    """Read the flags, check them against Megatron's, and lay out the stages in ``args``.

    Returns None without ``--pipeline-schedule``. Raises ScheduleError naming the values and what
    is legal.
    """
    if args.pipeline_schedule_module is not None:
        load_schedule_module(args.pipeline_schedule_module)
    if args.pipeline_schedule is None:
        for flag, value in (
            (flags.WAVES, args.num_waves),
            (flags.CHUNKS, args.num_chunks),
            (flags.TIMELINE, args.pipeline_timeline),
        ):
            if value is not None:
                raise ScheduleError(
                    f"{flag} {value} needs --pipeline-schedule NAME, with a schedule that has "
                    f"{'waves' if flag == flags.WAVES else 'chunks'}"
                )
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
    _check_validation_sets(args, pipeline)
    _lay_out(args, pipeline)
    # It means nothing here, and without it Megatron refuses two ranks with several chunks.
    args.overlap_p2p_comm = True
    _warn_of_masks(args, pipeline)
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
    refuse_flags(args, chosen)


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
    if getattr(args, "hybrid_layer_pattern", None):
        args.hybrid_layer_pattern = placed_pattern(args, pipeline.name, placement)
        return
    if args.pipeline_model_parallel_layout is not None:
        _check_layout(args, pipeline)
        return
    if args.num_layers is None:
        raise ScheduleError(f"--pipeline-schedule {pipeline.name} needs --num-layers")
    if args.num_layers < num_stages:
        raise ScheduleError(_too_few_layers(args, pipeline))
    layers = split_layers(
        args.num_layers,
        placement,
        first_cost=embedding_cost(args),
        last_cost=head_cost(args),
    )
    # They are counted now; Megatron takes either them or a layout.
    args.account_for_embedding_in_pipeline_split = False
    args.account_for_loss_in_pipeline_split = False
    if len(set(layers)) > 1 or placement.rank_of != tuple(range(placement.num_ranks)):
        args.pipeline_model_parallel_layout = layout_string(
            layers, mtp_num_layers=args.mtp_num_layers or 0
        )
    if len(set(layers)) > 1 and args.rank == 0:
        logger.warning(
            "%d layers are split into stages of %s by their cost; "
            "--pipeline-model-parallel-layout takes another split, in stage order",
            args.num_layers,
            ", ".join(map(str, layers)),
        )


def _check_layout(args: argparse.Namespace, pipeline: Pipeline) -> None:
    """The user's own layout fits the placement."""
    layout, placement = args.pipeline_model_parallel_layout, pipeline.placement
    stages = PipelineParallelLayerLayout.parse_str_to_list(layout)
    if len(stages) != placement.model_stages:
        raise ScheduleError(
            f"--pipeline-model-parallel-layout has {len(stages)} stages; schedule "
            f"{pipeline.name!r} needs {placement.model_stages} on {placement.num_ranks} ranks, in "
            "stage order"
        )
    counted = _counting_flags(args)
    if counted:
        raise ScheduleError(
            f"{counted[0]} means nothing beside --pipeline-model-parallel-layout {layout}, which "
            "says what is in each stage. Drop one of them"
        )
    if any(LayerType.mtp in stage for stage in stages[:-1]):
        raise ScheduleError(
            f"--pipeline-model-parallel-layout {layout} has multi-token prediction (m) outside of "
            "the last stage; put it there, before L"
        )


def _check_validation_sets(args: argparse.Namespace, pipeline: Pipeline) -> None:
    """Megatron takes a list of iterators either for chunks or for validation sets."""
    if getattr(args, "multiple_validation_sets", False) and pipeline.num_chunks > 1:
        raise ScheduleError(
            "--multiple-validation-sets does not work with --pipeline-schedule "
            f"{pipeline.name}, under which a rank has {pipeline.num_chunks} chunks: Megatron would "
            "take the chunks' data iterators for those of the sets. Drop one of them"
        )


def _warn_of_masks(args: argparse.Namespace, pipeline: Pipeline) -> None:
    """Transformer Engine takes no notice of the masks; Megatron's plain layers do."""
    masks = getattr(args, "reset_attention_mask", False) and args.transformer_impl == "local"
    if masks and pipeline.placement.model_stages > 2 and args.rank == 0:
        logger.warning(
            "--reset-attention-mask works in stages for which forward_step reads the data: all of "
            "them in hanayo_megatron.pretrain_gpt, only the first and the last one in "
            "Megatron-LM's scripts, in whose other stages tokens see other documents"
        )


def _mend_help(parser: argparse.ArgumentParser) -> None:
    """Texts of Megatron's with a bare percent sign end ``--help`` with a traceback."""
    for action in parser._actions:
        try:
            _ = (action.help or "") % {**vars(action), "prog": parser.prog}
        except (ValueError, TypeError):
            action.help = action.help.replace("%", "%%")


def _counting_flags(args: argparse.Namespace) -> list[str]:
    return [
        f"--account-for-{part}-in-pipeline-split"
        for part in ("embedding", "loss")
        if getattr(args, f"account_for_{part}_in_pipeline_split", False)
    ]


def _too_few_layers(args: argparse.Namespace, pipeline: Pipeline) -> str:
    placement = pipeline.placement
    num_stages = placement.model_stages
    text = (
        f"--num-layers {args.num_layers} does not fill the {num_stages} stages of "
        f"--pipeline-schedule {pipeline.name} on {placement.num_ranks} ranks; it needs at least "
        f"{num_stages}"
    )
    waves = args.num_layers // (num_stages // args.num_waves) if args.num_waves else 0
    return f"{text}, or --num-waves of at most {waves}" if waves else text

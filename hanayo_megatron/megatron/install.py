"""Puts the plug-in into Megatron when a flag asks for it."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hanayo_megatron import flags
from hanayo_megatron.errors import HanayoError
from hanayo_megatron.megatron.arguments import add_arguments, resolve_pipeline
from hanayo_megatron.megatron.checkpoints import checkpoint_hooks
from hanayo_megatron.megatron.embeddings import embedding_hooks
from hanayo_megatron.megatron.forward_backward import schedule_hooks
from hanayo_megatron.megatron.hooks import Hook, Replacement, apply
from hanayo_megatron.megatron.hybrid import hybrid_hooks
from hanayo_megatron.megatron.job import Job, start_hook
from hanayo_megatron.megatron.job_options import job_options
from hanayo_megatron.megatron.layout import placement_layout
from hanayo_megatron.megatron.memory_report import memory_hooks
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.megatron.plan_fields import plan_fields
from hanayo_megatron.megatron.replica_arguments import chunks_named
from hanayo_megatron.megatron.replicas import replica_hooks
from hanayo_megatron.megatron.skipped_steps import skipping_hook
from hanayo_megatron.megatron.stages import stage_hooks

logger = logging.getLogger(__name__)


def install(argv: Sequence[str] | None = None) -> list[Replacement]:
    """Make Megatron's argument parser know the plug-in's flags, if the command line has any.

    Call it before the training script parses its arguments. Once ``--pipeline-schedule`` was
    parsed and validated, Megatron is hooked; without one of the plug-in's flags nothing is
    touched. Returns what was replaced, with an ``undo`` each. Raises HanayoError where Megatron
    would drop the flags.
    """
    argv = sys.argv[1:] if argv is None else argv
    if not flags.concern_plugin(argv):
        return []
    if flags.are_replaced(argv):
        raise HanayoError(
            f"{flags.YAML} takes every argument from a file and drops the command line's, "
            f"{flags.SCHEDULE} with them. Give the arguments on the command line instead"
        )
    arguments = "megatron.training.arguments"
    return apply(
        [
            Hook(f"{arguments}:add_megatron_arguments", ("parser",), _adding_arguments),
            Hook(f"{arguments}:validate_args", ("args", "defaults"), _validating),
        ]
    )


def hook_megatron(pipeline: Pipeline, job: Job | None = None) -> list[Replacement]:
    """Make Megatron build and run the stages of a pipeline, within a job."""
    job = job or Job()
    layout = Hook(
        "megatron.core.transformer.transformer_config:PipelineParallelLayerLayout",
        ("layout", "pipeline_model_parallel_size"),
        lambda original: placement_layout(pipeline.placement),
    )
    return apply(
        [
            layout,
            *stage_hooks(pipeline),
            *embedding_hooks(pipeline),
            *schedule_hooks(pipeline, job),
            start_hook(pipeline, job),
            *checkpoint_hooks(),
            *hybrid_hooks(pipeline),
            *(replica_hooks() if pipeline.placement.replicas > 1 else ()),
            *memory_hooks(pipeline),
            skipping_hook(),
        ]
    )


def _adding_arguments(original: Callable) -> Callable:
    def add_megatron_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return add_arguments(original(parser))

    return add_megatron_arguments


def _validating(original: Callable) -> Callable:
    def validate_args(args: argparse.Namespace, *rest: Any, **named: Any) -> Any:
        pipeline = resolve_pipeline(args)
        if pipeline is not None:
            hook_megatron(pipeline, Job(job_options(args), partial(plan_fields, pipeline, args)))
            if args.rank == 0:
                logger.info(
                    "pipeline schedule %s: %d stages on %d ranks",
                    pipeline.name,
                    pipeline.placement.model_stages,
                    pipeline.placement.num_ranks,
                )
        with chunks_named(args, pipeline):
            return original(args, *rest, **named)

    return validate_args

"""Hybrid models (Mamba, attention, MLP layers by a pattern): a segment of the pattern a stage."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from megatron.core import parallel_state

from hanayo_megatron.megatron.hooks import Hook
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.megatron.split import head_cost, split_layers
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.schedule.schedule import ScheduleError

_SEGMENT_END = "|"
_FURTHER_TOKENS = "/"
_SYMBOLS_A_LAYER = 2
"""A transformer layer is two symbols, attention and MLP."""


def hybrid_hooks(pipeline: Pipeline) -> list[Hook]:
    """Hybrid models do not read Megatron's layout; they pick a segment by rank and chunk."""

    def by_stage(original: Callable) -> Callable:
        def select_pipeline_segment(
            main_pattern: str, pp_group: Any, vp_stage: int | None, *args: Any, **kwargs: Any
        ) -> Any:
            rank = parallel_state.get_pipeline_model_parallel_rank()
            stage = pipeline.stage_of(rank, vp_stage) % pipeline.placement.model_stages
            # Of a pipeline of one rank, chunk n is segment n.
            return original(main_pattern, None, stage, *args, **kwargs)

        return select_pipeline_segment

    return [
        Hook(
            "megatron.core.models.hybrid.hybrid_layer_allocation:select_pipeline_segment",
            ("main_pattern", "pp_group", "vp_stage"),
            by_stage,
        )
    ]


def placed_pattern(args: argparse.Namespace, name: str, placement: Placement) -> str:
    """--hybrid-layer-pattern with one segment a stage, in stage order.

    A pattern without segments is split by cost, one in which the user put them is kept. Raises
    ScheduleError if it does not fit.
    """
    pattern, num_stages = args.hybrid_layer_pattern, placement.model_stages
    flag = f"--hybrid-layer-pattern {pattern}"
    if _FURTHER_TOKENS in pattern:
        raise ScheduleError(
            f"{flag} predicts further tokens ({_FURTHER_TOKENS}); --pipeline-schedule {name} does "
            "that with GPT models only (--mtp-num-layers)"
        )
    segments = pattern.split(_SEGMENT_END)
    if len(segments) == num_stages:
        return pattern
    if len(segments) > 1:
        raise ScheduleError(
            f"{flag} has {len(segments)} segments; schedule {name!r} needs {num_stages} on "
            f"{placement.num_ranks} ranks, in stage order. Without any {_SEGMENT_END} it is split "
            "for you"
        )
    if len(pattern) < num_stages:
        raise ScheduleError(
            f"{flag} has {len(pattern)} layers; schedule {name!r} needs at least {num_stages}"
        )
    layers = split_layers(len(pattern), placement, last_cost=_SYMBOLS_A_LAYER * head_cost(args))
    ends = [sum(layers[: stage + 1]) for stage in range(num_stages)]
    starts = [0, *ends[:-1]]
    return _SEGMENT_END.join(pattern[a:b] for a, b in zip(starts, ends, strict=True))

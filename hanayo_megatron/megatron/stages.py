"""Makes Megatron ask a stage, not a rank, whether it is the first or the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatron.core import parallel_state

from hanayo_megatron.megatron.embeddings import tie_shared_weights
from hanayo_megatron.megatron.hooks import Hook
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.schedule.schedule import ScheduleError


def stage_hooks(pipeline: Pipeline) -> list[Hook]:
    """Hooks on Megatron's questions about first and last, and on its model builders."""
    placement = pipeline.placement
    utils = "megatron.core.pipeline_parallel.utils"
    state = "megatron.core.parallel_state"
    return [
        Hook(f"{utils}:is_pp_first_stage", ("pp_group",), _by_group(pipeline, placement.is_first)),
        Hook(f"{utils}:is_pp_last_stage", ("pp_group",), _by_group(pipeline, placement.is_last)),
        Hook(
            f"{state}:is_pipeline_first_stage",
            ("ignore_virtual", "vp_stage"),
            _by_chunk(pipeline, placement.is_first),
        ),
        Hook(
            f"{state}:is_pipeline_last_stage",
            ("ignore_virtual", "vp_stage"),
            _by_chunk(pipeline, placement.is_last),
        ),
        Hook(
            "megatron.training.utils.common_utils:is_first_or_last_pipeline_stage",
            ("vp_stage",),
            _with_data_on_rank_0(pipeline),
        ),
        Hook(
            "megatron.training.models.dist_utils:build_virtual_pipeline_stages",
            ("build_model_func", "pg_collection", "vp_size"),
            _building_stages(pipeline),
        ),
        Hook(
            "megatron.training.training:get_model",
            ("model_provider_func", "pg_collection"),
            _building_stages(pipeline),
        ),
    ]


def _by_group(pipeline: Pipeline, holds: Callable[[int], bool]) -> Callable[[Any], Any]:
    def wrap(original: Callable) -> Callable:
        def is_end(pp_group: Any) -> bool:
            if pipeline.current_stage is None:
                return original(pp_group)
            return holds(pipeline.current_stage)

        return is_end

    return wrap


def _by_chunk(pipeline: Pipeline, holds: Callable[[int], bool]) -> Callable[[Any], Any]:
    def wrap(original: Callable) -> Callable:
        def is_end(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
            names_chunk = vp_stage is not None and not ignore_virtual
            if not names_chunk and pipeline.current_stage is not None:
                return holds(pipeline.current_stage)
            if names_chunk or pipeline.num_chunks == 1:
                rank = parallel_state.get_pipeline_model_parallel_rank()
                return holds(pipeline.stage_of(rank, vp_stage))
            return original(ignore_virtual, vp_stage)

        return is_end

    return wrap


def _with_data_on_rank_0(pipeline: Pipeline) -> Callable[[Any], Any]:
    """Megatron trains if rank 0 has a dataset, so rank 0 builds one even if no stage reads it."""

    def wrap(original: Callable) -> Callable:
        def is_first_or_last_pipeline_stage(vp_stage: int | None) -> bool:
            if pipeline.current_stage is None and not vp_stage:
                return original(vp_stage) or parallel_state.get_pipeline_model_parallel_rank() == 0
            return original(vp_stage)

        return is_first_or_last_pipeline_stage

    return wrap


def _building_stages(pipeline: Pipeline) -> Callable[[Any], Any]:
    """Wrap a function whose first argument builds one chunk and learns first and last by flags."""

    def wrap(original: Callable) -> Callable:
        def build_all(build_model: Callable | None, *args: Any, **kwargs: Any) -> Any:
            def build_stage(*args: Any, vp_stage: int | None = None, **kwargs: Any) -> Any:
                rank = parallel_state.get_pipeline_model_parallel_rank()
                stage = pipeline.stage_of(rank, vp_stage)
                kwargs["pre_process"] = pipeline.placement.is_first(stage)
                kwargs["post_process"] = pipeline.placement.is_last(stage)
                if vp_stage is not None:
                    kwargs["vp_stage"] = vp_stage
                with pipeline.at_work(stage):
                    chunk = build_model(*args, **kwargs)
                _check_is_one_stack(chunk, pipeline)
                return chunk

            model = original(build_stage, *args, **kwargs)
            tie_shared_weights(pipeline, model)
            return model

        return build_all

    return wrap


def _check_is_one_stack(chunk: Any, pipeline: Pipeline) -> None:
    """Layers are split over stages as one stack, not as T5's two or with a vision encoder's."""
    if hasattr(chunk, "add_encoder") or hasattr(chunk, "modality_submodules"):
        raise ScheduleError(
            f"--pipeline-schedule {pipeline.name} trains models of one stack of layers (GPT, "
            f"hybrid, BERT), not {type(chunk).__name__}, which has several. Drop the flag"
        )

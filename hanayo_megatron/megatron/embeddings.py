"""Keeps the weight that the first and the last stage share one weight, wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.utils import get_attr_wrapped_model

from hanayo_megatron.megatron.hooks import Hook
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.megatron.swap import swap_with


def embedding_hooks(pipeline: Pipeline) -> list[Hook]:
    """Megatron ties over a group of rank 0 and rank P-1; here the stages' own ranks tie.

    The embedding group is cut down to the first stage's rank, which switches Megatron's tying off;
    the copy and the sum of gradients happen at the very places where Megatron has them.
    """
    first_rank = pipeline.placement.rank_of[0]

    def first_only(pp_ranks: list[int], *_: Any) -> list[int]:
        return [pp_ranks[first_rank]]

    def small_groups(original: Callable) -> Callable:
        def initialize_model_parallel(*args: Any, **kwargs: Any) -> Any:
            kwargs["get_embedding_ranks"] = first_only
            kwargs["get_position_embedding_ranks"] = first_only
            return original(*args, **kwargs)

        return initialize_model_parallel

    def summing(original: Callable) -> Callable:
        def allreduce_word_embedding_grads(
            model: list[torch.nn.Module], config: Any, *args: Any, **kwargs: Any
        ) -> None:
            original(model, config, *args, **kwargs)
            sum_shared_gradients(pipeline, model)

        return allreduce_word_embedding_grads

    return [
        Hook(
            "megatron.core.parallel_state:initialize_model_parallel",
            ("get_embedding_ranks", "get_position_embedding_ranks"),
            small_groups,
        ),
        Hook(
            "megatron.core.distributed.finalize_model_grads:_allreduce_word_embedding_grads",
            ("model", "config"),
            summing,
        ),
    ]


def tie_shared_weights(pipeline: Pipeline, model: list[torch.nn.Module]) -> None:
    """Give the last stage's copy of the shared weight the first stage's values."""
    first, last = _shared_weights(pipeline, model)
    if first is not None and last is not None:
        last.data.copy_(first.data)
        return
    group = parallel_state.get_pipeline_model_parallel_group()
    device = torch.cuda.current_device()
    placement = pipeline.placement
    if first is not None:
        dist.send(first.data.to(device), group=group, group_dst=placement.rank_of[-1])
    elif last is not None:
        values = torch.empty_like(last.data, device=device)
        dist.recv(values, group=group, group_src=placement.rank_of[0])
        last.data.copy_(values)


def sum_shared_gradients(pipeline: Pipeline, model: list[torch.nn.Module]) -> None:
    """Both copies of the shared weight get the sum of their gradients."""
    first, last = (_gradient(w) for w in _shared_weights(pipeline, model))
    if first is not None and last is not None:
        first.add_(last)
        last.copy_(first)
    elif first is not None:
        first.add_(swap_with(pipeline.placement.rank_of[-1], first))
    elif last is not None:
        last.add_(swap_with(pipeline.placement.rank_of[0], last))


def _shared_weights(
    pipeline: Pipeline, model: list[torch.nn.Module]
) -> tuple[torch.nn.Parameter | None, torch.nn.Parameter | None]:
    """This rank's copies of the shared weight: the first stage's and the last stage's."""
    rank = parallel_state.get_pipeline_model_parallel_rank()
    copies: list[torch.nn.Parameter | None] = [None, None]
    for stage, chunk in zip(pipeline.placement.stages_of[rank], model, strict=True):
        ends = (pipeline.placement.is_first(stage), pipeline.placement.is_last(stage))
        if not any(ends):
            continue
        language_model = get_attr_wrapped_model(chunk, "pre_process", return_model_obj=True)
        shares = getattr(language_model, "share_embeddings_and_output_weights", False)
        # Multi-token prediction embeds tokens in the last stage again.
        if shares or getattr(language_model.config, "mtp_num_layers", None):
            copies[ends[1]] = language_model.shared_embedding_or_output_weight()
    return copies[0], copies[1]


def _gradient(weight: torch.nn.Parameter | None) -> torch.Tensor | None:
    if weight is None:
        return None
    return weight.main_grad if hasattr(weight, "main_grad") else weight.grad

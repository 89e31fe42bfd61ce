"""Lets `torch.distributed` run on gloo whatever backend is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed


def redirect_distributed() -> None:
    """Make every process group a gloo group and give gloo the argument types it understands."""
    _replace("init_process_group", _on_gloo)
    _replace("new_group", _on_gloo)
    _replace("all_to_all_single", _with_int_sizes)


def _replace(name: str, wrap: Callable[[Callable], Callable]) -> None:
    replacement = wrap(getattr(torch.distributed, name))
    setattr(torch.distributed, name, replacement)
    setattr(torch.distributed.distributed_c10d, name, replacement)


def _on_gloo(function: Callable) -> Callable:
    @functools.wraps(function)
    def create(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("backend") not in (None, "fake"):
            kwargs["backend"] = "gloo"
        for nccl_only in ("pg_options", "device_id"):
            kwargs.pop(nccl_only, None)
        return function(*args, **kwargs)

    return create


def _with_int_sizes(function: Callable) -> Callable:
    """NCCL takes split sizes as tensors, gloo only as lists of ints."""

    @functools.wraps(function)
    def all_to_all_single(
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | torch.Tensor | None = None,
        input_split_sizes: Sequence[int] | torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        return function(
            output, input, _as_ints(output_split_sizes), _as_ints(input_split_sizes), **kwargs
        )

    return all_to_all_single


def _as_ints(sizes: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    return None if sizes is None else [int(size) for size in sizes]

"""Starts each chunk's data-parallel communication as soon as the schedule allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class GradientSync:
    """Holds gradient reductions back until a chunk's last backward.

    Megatron gives the hooks either one for all chunks or a list with one a chunk. With
    ``grad_sync_func`` the reduction starts by a call behind the last backward; without it, DDP's
    own backward hooks start it bucket by bucket during that backward.
    """

    def __init__(self, config: Any, model: Sequence[torch.nn.Module]) -> None:
        self._model = model
        no_sync = config.no_sync_func or nullcontext
        per_chunk = isinstance(no_sync, list)
        self._no_sync: list[Callable[[], AbstractContextManager]] = (
            no_sync if per_chunk else [no_sync]
        )
        self._start = _per_chunk(config.grad_sync_func, len(model))
        self._held: dict[int, AbstractContextManager] = {}

    def __enter__(self) -> GradientSync:
        for index in range(len(self._no_sync)):
            self._hold(index)
        return self

    def __exit__(self, *error: object) -> None:
        for index in list(self._held):
            self._release(index)

    def before_last_backward(self, chunk: int) -> None:
        """The chunk's next backward completes its gradients."""
        if self._start is None:
            self._release(self._index(chunk))

    def after_last_backward(self, chunk: int) -> None:
        """The chunk's gradients are complete."""
        index = self._index(chunk)
        if self._start is not None:
            self._release(index)
            self._start[chunk](self._model[chunk].parameters())
        self._hold(index)

    def _index(self, chunk: int) -> int:
        return chunk if len(self._no_sync) > 1 else 0

    def _hold(self, index: int) -> None:
        if index not in self._held:
            context = self._no_sync[index]()
            context.__enter__()
            self._held[index] = context

    def _release(self, index: int) -> None:
        context = self._held.pop(index, None)
        if context is not None:
            context.__exit__(None, None, None)


class ParameterSync:
    """Starts the gathering of updated parameters, one chunk ahead of its first use."""

    def __init__(self, config: Any, model: Sequence[torch.nn.Module], first_use: list[int]) -> None:
        self._gather = _per_chunk(config.param_sync_func, len(model))
        self._model = model
        self._pending = first_use if self._gather is not None else []
        self._used: set[int] = set()
        self._next()

    def before_forward(self, chunk: int) -> None:
        """A chunk is about to run; on its first microbatch the next chunk's gather starts."""
        if self._pending and chunk not in self._used:
            self._used.add(chunk)
            self._next()

    def _next(self) -> None:
        if self._pending:
            chunk = self._pending.pop(0)
            self._gather[chunk](self._model[chunk].parameters())


def _per_chunk(hook: Any, num_chunks: int) -> list[Callable] | None:
    if hook is None or isinstance(hook, list):
        return hook
    return [hook] * num_chunks

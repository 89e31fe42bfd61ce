"""Starts the gradient sums over both copies of the model, in one order on mirror ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch


class ReplicaGradientSync:
    """Starts chunks' reductions from the last to the first, each when its gradients are complete.

    A reduction joins this rank and its mirror, so both must start theirs in one order, whichever
    copy finishes first: the deeper piece of the model goes first, as its last backward does. It is
    hidden behind what is left of the step; that of the other piece has nothing left to hide behind
    and starts when its own last backward has ended (the eager rule, Chimera, section 3.2). Without
    ``--overlap-grad-reduce`` nothing starts here: Megatron reduces after the step, chunk by chunk.
    """

    def __init__(self, config: Any, model: Sequence[torch.nn.Module]) -> None:
        self._no_sync = config.no_sync_func
        self._model = model
        self._complete: set[int] = set()
        self._waiting = list(reversed(range(len(model)))) if self._no_sync is not None else []
        self._held = ExitStack()

    def __enter__(self) -> ReplicaGradientSync:
        for no_sync in self._no_sync or ():
            self._held.enter_context(no_sync())
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            # A copy without a microbatch of its own still adds its zeros to the other's gradients.
            self._complete.update(self._waiting)
            self._start()
        self._held.close()

    def before_last_backward(self, chunk: int) -> None:
        """Nothing starts during a backward."""

    def after_last_backward(self, chunk: int) -> None:
        """The chunk's gradients are complete on this rank."""
        self._complete.add(chunk)
        self._start()

    def _start(self) -> None:
        while self._waiting and self._waiting[0] in self._complete:
            self._model[self._waiting.pop(0)].start_grad_sync()


class ReplicaParameterSync:
    """Starts the gathering of all updated parameters, in one order on mirror ranks.

    All at once, also those of ``idle`` chunks, which have no microbatch in this step: the mirror
    waits for their shards.
    """

    def __init__(
        self, config: Any, model: Sequence[torch.nn.Module], *, idle: Sequence[int]
    ) -> None:
        if config.param_sync_func is None:
            return
        for gather, chunk in zip(config.param_sync_func, model, strict=True):
            gather(chunk.parameters())
        for index in idle:  # Megatron waits in a chunk's forward, which does not come.
            model[index].start_param_sync(force_sync=True)

    def before_forward(self, chunk: int) -> None:
        """All gathers are under way."""

"""What the executor needs from the model: the work of single stages."""

from __future__ import annotations

from typing import Protocol

import torch

from hanayo_megatron.lowering.operation import Transfer


class StageWorker(Protocol):
    """Runs the stages that one rank holds. All state is keyed by stage and microbatch."""

    def forward(
        self, stage: int, microbatch: int, input_tensor: torch.Tensor | None
    ) -> torch.Tensor:
        """Run a stage; ``input_tensor`` is None for a first stage. A last stage gives the loss."""
        ...

    def backward(
        self,
        stage: int,
        microbatch: int,
        *,
        input_tensor: torch.Tensor | None,
        output: torch.Tensor,
        output_gradient: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """Full backward; the gradient of the input, or None for a first stage."""
        ...

    def backward_input(
        self,
        stage: int,
        microbatch: int,
        *,
        input_tensor: torch.Tensor | None,
        output: torch.Tensor,
        output_gradient: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """The input's share of the backward; keeps what ``backward_weight`` needs."""
        ...

    def backward_weight(self, stage: int, microbatch: int) -> None:
        """The weights' share of the backward."""
        ...

    def empty(self, transfer: Transfer) -> torch.Tensor:
        """An uninitialised buffer to receive the transfer into."""
        ...

    def free(self, output: torch.Tensor) -> None:
        """Drop the data of a stage's output that was passed on; its graph is still needed."""
        ...

    def sync_gradients(self, stage: int) -> None:
        """Start the data-parallel reduction of the stage's weight gradients."""
        ...

"""What the executor needs from the model: the work of single stages."""

from __future__ import annotations

from typing import Protocol

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.runtime.tensors import Specs, Tensors


class StageWorker(Protocol):
    """Runs the stages that one rank holds. All state is keyed by stage and microbatch.

    A stage hands on one tensor, or a tuple of them. The gradient of a tuple is a tuple with an
    entry for each of its tensors that can have one (those of floating point).
    """

    def forward(self, stage: int, microbatch: int, input_tensor: Tensors | None) -> Tensors:
        """Run a stage; ``input_tensor`` is None for a first stage. A last stage gives the loss."""
        ...

    def backward(
        self,
        stage: int,
        microbatch: int,
        *,
        input_tensor: Tensors | None,
        output: Tensors,
        output_gradient: Tensors | None,
    ) -> Tensors | None:
        """Full backward; the gradient of the input, or None for a first stage."""
        ...

    def backward_input(
        self,
        stage: int,
        microbatch: int,
        *,
        input_tensor: Tensors | None,
        output: Tensors,
        output_gradient: Tensors | None,
    ) -> Tensors | None:
        """The input's share of the backward; keeps what ``backward_weight`` needs."""
        ...

    def backward_weight(self, stage: int, microbatch: int) -> None:
        """The weights' share of the backward."""
        ...

    def specs_of(self, transfer: Transfer) -> Specs:
        """What the transfer carries; asked where shapes are not announced."""
        ...

    def free(self, output: Tensors) -> None:
        """Drop the data of a stage's output that was passed on; its graph is still needed."""
        ...

    def sync_gradients(self, stage: int) -> None:
        """Start the data-parallel reduction of the stage's weight gradients."""
        ...

"""Runs a stage's work with Megatron's own forward_step and backward_step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.pipeline_parallel import schedules

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.megatron.gradient_sync import GradientSync, ParameterSync
from hanayo_megatron.megatron.microbatch_data import MicrobatchReader, explaining_end_of_data
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.megatron.replica_gradients import ReplicaGradientSync, ReplicaParameterSync
from hanayo_megatron.runtime.tensors import TensorSpec


@dataclass(frozen=True, kw_only=True)
class StepRequest:
    """What Megatron asks of one call of the forward_backward function."""

    forward_step_func: Callable
    data_iterators: Sequence[Iterator | None]
    model: Sequence[torch.nn.Module]
    config: Any
    num_microbatches: int
    tensor_shape: tuple[int, int, int]
    """[s, b, h] of an activation between stages, after context and sequence parallel split."""
    cp_size: int
    forward_only: bool
    collect_non_loss_data: bool
    first_val_step: bool | None


class MegatronWorker:
    """The stages of one rank as Megatron model chunks."""

    def __init__(
        self,
        pipeline: Pipeline,
        request: StepRequest,
        *,
        microbatches_of_replica: Sequence[Sequence[int]],
        gradient_sync: GradientSync | ReplicaGradientSync,
        parameter_sync: ParameterSync | ReplicaParameterSync,
    ) -> None:
        self._pipeline = pipeline
        self._placement = pipeline.placement
        self._request = request
        self._microbatches_of_replica = microbatches_of_replica
        self._gradient_sync = gradient_sync
        self._parameter_sync = parameter_sync
        self._backwards_left: dict[int, int] = {}
        self._device = torch.cuda.current_device()
        self._collected: dict[int, list] = {}
        self.num_tokens = torch.zeros([], dtype=torch.int, device=self._device)
        """Tokens that counted in the losses of this rank's last stage."""

    @property
    def collected(self) -> dict[int, list]:
        """What the loss function reported on this rank, by microbatch."""
        return self._collected

    def forward(
        self, stage: int, microbatch: int, input_tensor: torch.Tensor | None
    ) -> torch.Tensor:
        request = self._request
        chunk = self._placement.chunk_of[stage]
        self._parameter_sync.before_forward(chunk)
        collected: list = []
        data = request.data_iterators[chunk]
        if isinstance(data, MicrobatchReader):
            data.select(microbatch)
        with self._pipeline.at_work(stage), explaining_end_of_data(chunk, microbatch):
            output, num_tokens = schedules.forward_step(
                request.forward_step_func,
                data,
                request.model[chunk],
                request.num_microbatches,
                input_tensor,
                collected,
                request.config,
                request.cp_size,
                collect_non_loss_data=request.collect_non_loss_data,
                is_first_microbatch=schedules.check_first_val_step(
                    request.first_val_step, request.forward_only, stage not in self._backwards_left
                ),
                current_microbatch=microbatch,
                vp_stage=chunk if self._pipeline.num_chunks > 1 else None,
                is_last_stage=self._placement.is_last(stage),
            )
        share = self._microbatches_of_replica[self._placement.replica_of(stage)]
        self._backwards_left.setdefault(stage, len(share))
        if self._placement.is_last(stage):
            self._collected[microbatch] = collected
            # Megatron's zero, for losses without a count, is on the host; moving it would wait.
            self.num_tokens += num_tokens
        return output

    def backward(
        self,
        stage: int,
        microbatch: int,
        *,
        input_tensor: torch.Tensor | None,
        output: torch.Tensor,
        output_gradient: torch.Tensor | None,
    ) -> torch.Tensor | None:
        self._backwards_left[stage] -= 1
        if self._backwards_left[stage] == 0:
            self._gradient_sync.before_last_backward(self._placement.chunk_of[stage])
        with self._pipeline.at_work(stage):
            return schedules.backward_step(
                input_tensor, output, output_gradient, self._request.config
            )

    def specs_of(self, transfer: Transfer) -> TensorSpec:
        return TensorSpec(self._request.tensor_shape, self._request.config.pipeline_dtype)

    def free(self, output: torch.Tensor) -> None:
        if not self._request.forward_only:
            schedules.deallocate_output_tensor(
                output, self._request.config.deallocate_pipeline_outputs
            )

    def sync_gradients(self, stage: int) -> None:
        self._gradient_sync.after_last_backward(self._placement.chunk_of[stage])

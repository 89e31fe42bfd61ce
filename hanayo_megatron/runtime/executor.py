"""Executes one rank's action list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.operation import Compute, Exchange, Free, SyncGradients, Transfer
from hanayo_megatron.runtime.transport import Handle, Parcel, Transport
from hanayo_megatron.runtime.worker import StageWorker
from hanayo_megatron.schedule.action import Kind

_Key = tuple[Kind, int, int]  # kind of tensor, stage that reads it, microbatch


@dataclass
class ExecutionStats:
    """Counted while a list runs; equal to the simulator's figures for the same list."""

    live_activations: int = 0
    """Stage forwards whose backward is still to come."""
    peak_activations: int = 0
    receive_buffers: int = 0
    """Receives posted whose tensor no compute has taken yet."""
    peak_receive_buffers: int = 0


class Executor:
    """Runs the operations of one rank in order; the host waits only where data is needed.

    Args:
        lowered: the schedule with its action lists.
        rank: whose list to run.
        worker: does the work of the stages.
        transport: moves tensors to and from other ranks.
    """

    def __init__(
        self, lowered: LoweredSchedule, *, rank: int, worker: StageWorker, transport: Transport
    ) -> None:
        self._placement = lowered.schedule.placement
        self._program = lowered.programs[rank]
        self._trains = not lowered.schedule.is_forward_only
        self._worker = worker
        self._transport = transport
        self._arrivals: dict[_Key, tuple[torch.Tensor, Handle | None]] = {}
        self._outbox: dict[_Key, torch.Tensor] = {}
        self._sending: dict[_Key, tuple[torch.Tensor, Parcel, Handle]] = {}
        self._saved: dict[tuple[int, int], tuple[torch.Tensor | None, torch.Tensor]] = {}
        self.stats = ExecutionStats()

    def run(self) -> None:
        """Execute the list once. Raises RuntimeError if a tensor was made and never used."""
        handlers: dict[type, Callable] = {
            Compute: self._compute,
            Exchange: self._exchange,
            Free: self._free,
            SyncGradients: self._sync_gradients,
        }
        for operation in self._program:
            handlers[type(operation)](operation)
        left = [*self._arrivals, *self._outbox, *self._sending, *self._saved]
        if left:
            raise RuntimeError(f"the action list ended with tensors left over: {left}")

    def _compute(self, operation: Compute) -> None:
        stage, kind, microbatch = operation.action
        if kind is Kind.F:
            self._forward(stage, microbatch)
        elif kind is Kind.W:
            self._worker.backward_weight(stage, microbatch)
            self.stats.live_activations -= 1
        else:
            self._backward(stage, microbatch, kind)

    def _forward(self, stage: int, microbatch: int) -> None:
        input_tensor = None
        if not self._placement.is_first(stage):
            input_tensor = self._take(Kind.F, stage, microbatch)
            if self._trains:
                input_tensor.requires_grad_()
        output = self._worker.forward(stage, microbatch, input_tensor)
        if self._trains:
            self._saved[stage, microbatch] = (input_tensor, output)
            stats = self.stats
            stats.live_activations += 1
            stats.peak_activations = max(stats.peak_activations, stats.live_activations)
        if self._placement.is_last(stage):
            return
        if self._placement.is_turn(stage):
            # The detached tensor shares the storage, which outlives the freed output.
            self._arrivals[Kind.F, stage + 1, microbatch] = (output.detach(), None)
            self._worker.free(output)
        else:
            self._outbox[Kind.F, stage + 1, microbatch] = output

    def _backward(self, stage: int, microbatch: int, kind: Kind) -> None:
        gradient = None
        if not self._placement.is_last(stage):
            gradient = self._take(Kind.B, stage, microbatch)
        input_tensor, output = self._saved.pop((stage, microbatch))
        run = self._worker.backward if kind is Kind.B else self._worker.backward_input
        input_gradient = run(
            stage, microbatch, input_tensor=input_tensor, output=output, output_gradient=gradient
        )
        if kind is Kind.B:
            self.stats.live_activations -= 1
        if self._placement.is_first(stage):
            return
        key = (Kind.B, stage - 1, microbatch)
        if self._placement.is_turn(stage - 1):
            self._arrivals[key] = (input_gradient, None)
        else:
            self._outbox[key] = input_gradient

    def _take(self, kind: Kind, stage: int, microbatch: int) -> torch.Tensor:
        tensor, handle = self._arrivals.pop((kind, stage, microbatch))
        if handle is not None:
            handle.wait()
            self.stats.receive_buffers -= 1
        return tensor

    def _exchange(self, operation: Exchange) -> None:
        outputs = [self._outbox.pop(_key(t)) for t in operation.sends]
        sends = [
            Parcel(t, output.detach().contiguous())
            for t, output in zip(operation.sends, outputs, strict=True)
        ]
        receives = [Parcel(t, self._worker.empty(t)) for t in operation.receives]
        handles = self._transport.exchange(operation.peer, sends=sends, receives=receives)
        for output, parcel, handle in zip(outputs, sends, handles, strict=False):
            self._sending[_key(parcel.transfer)] = (output, parcel, handle)
        for (transfer, tensor), handle in zip(receives, handles[len(sends) :], strict=True):
            self._arrivals[_key(transfer)] = (tensor, handle)
        stats = self.stats
        stats.receive_buffers += len(receives)
        stats.peak_receive_buffers = max(stats.peak_receive_buffers, stats.receive_buffers)

    def _free(self, operation: Free) -> None:
        output, _, handle = self._sending.pop(_key(operation.transfer))
        handle.wait()
        if operation.transfer.kind is Kind.F and self._trains:
            self._worker.free(output)

    def _sync_gradients(self, operation: SyncGradients) -> None:
        self._worker.sync_gradients(operation.stage)


def _key(transfer: Transfer) -> _Key:
    return (transfer.kind, transfer.target_stage, transfer.microbatch)

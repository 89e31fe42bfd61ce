"""Executes one rank's action list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.operation import (
    Announce,
    Compute,
    Exchange,
    Free,
    SyncGradients,
    Transfer,
)
from hanayo_megatron.runtime.messenger import Arrival, Expected, Message, Messenger
from hanayo_megatron.runtime.observer import Observer
from hanayo_megatron.runtime.tensors import (
    Specs,
    Tensors,
    are_tensors,
    each,
    require_gradients,
    specs_of,
)
from hanayo_megatron.runtime.transport import Handle, TransportError
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
    """Messages whose receive is posted and that no compute has taken yet."""
    peak_receive_buffers: int = 0
    send_buffers: int = 0
    """Messages made for another rank and not freed yet."""
    peak_send_buffers: int = 0


class Executor:
    """Runs the operations of one rank in order; the host waits only where data is needed.

    Args:
        lowered: the schedule with its action lists.
        rank: whose list to run.
        worker: does the work of the stages.
        messenger: moves what stages hand on to and from other ranks.
        observers: told of every operation.
    """

    def __init__(
        self,
        lowered: LoweredSchedule,
        *,
        rank: int,
        worker: StageWorker,
        messenger: Messenger,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._placement = lowered.schedule.placement
        self._program = lowered.programs[rank]
        self._trains = not lowered.schedule.is_forward_only
        self._worker = worker
        self._messenger = messenger
        self._observers = tuple(observers)
        self._announcements: dict[_Key, Arrival[Specs]] = {}
        self._announced: dict[_Key, Handle] = {}
        self._arrivals: dict[_Key, tuple[Transfer, Arrival[Tensors]]] = {}
        self._handed_on: dict[_Key, Tensors] = {}  # from a stage to the next on this rank
        self._outbox: dict[_Key, Tensors] = {}
        self._sending: dict[_Key, tuple[Tensors, Handle]] = {}
        self._saved: dict[tuple[int, int], tuple[Tensors | None, Tensors]] = {}
        self.stats = ExecutionStats()

    def run(self) -> None:
        """Execute the list once. Raises RuntimeError if a tensor was made and never used."""
        handlers: dict[type, Callable] = {
            Compute: self._compute,
            Announce: self._announce,
            Exchange: self._exchange,
            Free: self._free,
            SyncGradients: self._sync_gradients,
        }
        for operation in self._program:
            for observer in self._observers:
                observer.begin(operation)
            handlers[type(operation)](operation)
            for observer in self._observers:
                observer.end(operation)
        left = [
            *(*self._announcements, *self._announced, *self._arrivals),
            *(*self._handed_on, *self._outbox, *self._sending, *self._saved),
        ]
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
                require_gradients(input_tensor)
        output = self._worker.forward(stage, microbatch, input_tensor)
        if self._trains:
            self._saved[stage, microbatch] = (input_tensor, output)
            stats = self.stats
            stats.live_activations += 1
            stats.peak_activations = max(stats.peak_activations, stats.live_activations)
        if self._placement.is_last(stage):
            return
        if not are_tensors(output):
            raise TransportError(
                f"stage {stage} hands on {type(output).__name__} in microbatch {microbatch}; it "
                "must be a tensor or a tuple of tensors"
            )
        if self._placement.is_turn(stage):
            # The detached tensor shares the storage, which outlives the freed output.
            key = (Kind.F, stage + 1, microbatch)
            self._handed_on[key] = each(lambda tensor: tensor.detach(), output)
            self._worker.free(output)
        else:
            self._put_out((Kind.F, stage + 1, microbatch), output)

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
        if not are_tensors(input_gradient):
            raise TransportError(
                f"stage {stage} has no gradient of its input in microbatch {microbatch}: what it "
                "hands on does not depend on it. Compute it without detach() or no_grad()"
            )
        key = (Kind.B, stage - 1, microbatch)
        if self._placement.is_turn(stage - 1):
            self._handed_on[key] = input_gradient
        else:
            self._put_out(key, input_gradient)

    def _put_out(self, key: _Key, tensors: Tensors) -> None:
        self._outbox[key] = tensors
        stats = self.stats
        stats.send_buffers += 1
        stats.peak_send_buffers = max(stats.peak_send_buffers, stats.send_buffers)

    def _take(self, kind: Kind, stage: int, microbatch: int) -> Tensors:
        key = (kind, stage, microbatch)
        if key in self._handed_on:
            return self._handed_on.pop(key)
        transfer, arrival = self._arrivals.pop(key)
        tensors = self._wait(transfer, arrival)
        self.stats.receive_buffers -= 1
        return tensors

    def _announce(self, operation: Announce) -> None:
        messages = [Message(t, self._outbox[_key(t)]) for t in operation.sends]
        sent, announcements = self._messenger.announce(
            operation.peer, sends=messages, receives=operation.receives
        )
        for transfer, handle in zip(operation.sends, sent, strict=True):
            self._announced[_key(transfer)] = handle
        for transfer, announcement in zip(operation.receives, announcements, strict=True):
            self._announcements[_key(transfer)] = announcement

    def _exchange(self, operation: Exchange) -> None:
        outputs = [self._outbox.pop(_key(t)) for t in operation.sends]
        messages = [
            Message(transfer, each(lambda tensor: tensor.detach().contiguous(), output))
            for transfer, output in zip(operation.sends, outputs, strict=True)
        ]
        for message in messages:
            self._check_shape(message)
        sent, arrivals = self._messenger.exchange(
            operation.peer,
            sends=messages,
            receives=[Expected(t, self._specs_of(t)) for t in operation.receives],
        )
        for output, message, handle in zip(outputs, messages, sent, strict=True):
            self._sending[_key(message.transfer)] = (output, handle)
        for transfer, arrival in zip(operation.receives, arrivals, strict=True):
            self._arrivals[_key(transfer)] = (transfer, arrival)
        stats = self.stats
        stats.receive_buffers += len(operation.receives)
        stats.peak_receive_buffers = max(stats.peak_receive_buffers, stats.receive_buffers)

    def _specs_of(self, transfer: Transfer) -> Specs:
        """What a transfer brings, as it was announced or as the worker knows."""
        announcement = self._announcements.pop(_key(transfer), None)
        if announcement is None:
            return self._worker.specs_of(transfer)
        return self._wait(transfer, announcement)

    def _check_shape(self, message: Message) -> None:
        """Raise TransportError where the receiver expects another size: NCCL would hang."""
        if _key(message.transfer) in self._announced:
            return
        given, expected = specs_of(message.tensors), self._worker.specs_of(message.transfer)
        if given != expected:
            raise TransportError(
                f"the {message.transfer} is {_text(given)}; the receiver expects {_text(expected)}."
                " Tensors between stages that differ from the configured size need shapes that "
                "are announced: the config's variable_seq_lengths, or an adjust_tensor_shapes_fn"
            )

    def _free(self, operation: Free) -> None:
        key = _key(operation.transfer)
        announced = self._announced.pop(key, None)
        if announced is not None:
            self._wait(operation.transfer, announced)
        output, handle = self._sending.pop(key)
        self._wait(operation.transfer, handle)
        self.stats.send_buffers -= 1
        if operation.transfer.kind is Kind.F and self._trains:
            self._worker.free(output)

    def _wait(self, transfer: Transfer, handle: Handle | Arrival) -> Any:
        for observer in self._observers:
            observer.begin_wait(transfer)
        result = handle.wait()
        for observer in self._observers:
            observer.end_wait(transfer)
        return result

    def _sync_gradients(self, operation: SyncGradients) -> None:
        self._worker.sync_gradients(operation.stage)


def _text(specs: Specs) -> str:
    return ", ".join(map(str, specs)) if isinstance(specs, tuple) else str(specs)


def _key(transfer: Transfer) -> _Key:
    return (transfer.kind, transfer.target_stage, transfer.microbatch)

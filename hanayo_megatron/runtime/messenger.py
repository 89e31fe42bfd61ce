"""Sends what stages hand on as the parcels of a transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.runtime import shape_header
from hanayo_megatron.runtime.receive_buffers import ReceiveBuffers
from hanayo_megatron.runtime.tensors import Specs, Tensors, parts
from hanayo_megatron.runtime.transport import Handle, Parcel, Transport

_HEADER_PART = shape_header.MAX_TENSORS


class Message(NamedTuple):
    """A transfer and what it carries."""

    transfer: Transfer
    tensors: Tensors


class Expected(NamedTuple):
    """A transfer and what the tensors that it brings are like."""

    transfer: Transfer
    specs: Specs


class Arrival[T](Protocol):
    """Something on its way in."""

    def wait(self) -> T:
        """What has come, once it may be read."""
        ...


class Messenger:
    """Exchanges messages with other ranks, in the order in which they are posted.

    Args:
        transport: moves single tensors.
        buffers: to receive into.
    """

    def __init__(self, transport: Transport, buffers: ReceiveBuffers) -> None:
        self._transport = transport
        self._buffers = buffers

    def announce(
        self, peer: int, *, sends: Sequence[Message], receives: Sequence[Transfer]
    ) -> tuple[list[Handle], list[Arrival[Specs]]]:
        """Tell a peer what messages are like, and be told; for each send, for each receive."""
        device = self._buffers.device
        told = [_header(m.transfer, shape_header.write(m.tensors, device)) for m in sends]
        heard = [_header(t, shape_header.empty(device)) for t in receives]
        handles = self._transport.exchange(peer, sends=told, receives=heard)
        split = len(told)
        return (
            [_Sent(p.tensor, [h]) for p, h in zip(told, handles[:split], strict=True)],
            [_Header(p.tensor, h) for p, h in zip(heard, handles[split:], strict=True)],
        )

    def exchange(
        self, peer: int, *, sends: Sequence[Message], receives: Sequence[Expected]
    ) -> tuple[list[Handle], list[Arrival[Tensors]]]:
        """Start a group with a peer: a handle for each send, an arrival for each receive."""
        incoming = [Message(t, self._buffers.take(specs)) for t, specs in receives]
        handles = iter(
            self._transport.exchange(
                peer,
                sends=[parcel for message in sends for parcel in _parcels(message)],
                receives=[parcel for message in incoming for parcel in _parcels(message)],
            )
        )
        sent = [_Sent(m.tensors, [next(handles) for _ in parts(m.tensors)]) for m in sends]
        arrivals = [_Filled(m.tensors, [next(handles) for _ in parts(m.tensors)]) for m in incoming]
        return sent, arrivals


@dataclass(frozen=True)
class _Sent:
    """What must be kept until it was sent."""

    tensors: Tensors
    handles: list[Handle]

    def wait(self) -> None:
        for handle in self.handles:
            handle.wait()


@dataclass(frozen=True)
class _Filled:
    """Buffers and the handles of what fills them."""

    tensors: Tensors
    handles: list[Handle]

    def wait(self) -> Tensors:
        for handle in self.handles:
            handle.wait()
        return self.tensors


@dataclass(frozen=True)
class _Header:
    tensor: torch.Tensor
    handle: Handle

    def wait(self) -> Specs:
        self.handle.wait()
        return shape_header.read(self.tensor)


def _header(transfer: Transfer, tensor: torch.Tensor) -> Parcel:
    return Parcel(transfer, tensor, _HEADER_PART)


def _parcels(message: Message) -> list[Parcel]:
    return [Parcel(message.transfer, t, part) for part, t in enumerate(parts(message.tensors))]

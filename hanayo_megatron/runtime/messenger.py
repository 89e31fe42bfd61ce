"""Sends what stages hand on as the parcels of a transport.

Two ways: with shapes that both sides know, or with shapes that the sender announces.

Announced shapes keep to the one order of all transfers, so nothing can deadlock. Every group is
followed, on its communicator, by a second one with the data; ranks post both in the same order
everywhere: header k, data k, header k+1, ... A rank that only sends posts its data at once. A rank
that receives must read the header first, and puts that off until it waits for the transfer anyway,
or until the next group needs the same communicator. Before it waits for transfer k it posts the
data of all groups up to k and of no later one. So of all the transfers that ranks wait for, the
first one in the global order always moves: both ranks have posted its header, and neither waits
for anything before they post its data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.runtime import shape_header
from hanayo_megatron.runtime.tensors import Tensors, parts
from hanayo_megatron.runtime.transport import Handle, Parcel, Transport

_HEADER_PART = shape_header.MAX_TENSORS


class Message(NamedTuple):
    """A transfer and what it carries."""

    transfer: Transfer
    tensors: Tensors


class Arrival(Protocol):
    """A message on its way in."""

    def wait(self) -> Tensors:
        """The tensors, once they may be read."""
        ...


class Messenger(Protocol):
    """Exchanges messages with other ranks, in the order in which they are posted."""

    def exchange(
        self, peer: int, *, sends: Sequence[Message], receives: Sequence[Transfer]
    ) -> tuple[list[Handle], list[Arrival]]:
        """Start a group with a peer rank: a handle for each send, an arrival for each receive."""
        ...


class KnownShapes:
    """Receives into buffers that ``empty`` makes, as soon as a group is posted."""

    def __init__(self, transport: Transport, empty: Callable[[Transfer], Tensors]) -> None:
        self._transport = transport
        self._empty = empty

    def exchange(
        self, peer: int, *, sends: Sequence[Message], receives: Sequence[Transfer]
    ) -> tuple[list[Handle], list[Arrival]]:
        incoming = [Message(t, self._empty(t)) for t in receives]
        handles = self._transport.exchange(
            peer,
            sends=[parcel for message in sends for parcel in _parcels(message)],
            receives=[parcel for message in incoming for parcel in _parcels(message)],
        )
        left = iter(handles)
        sent = [_Together([next(left) for _ in parts(m.tensors)]) for m in sends]
        arrivals = [_Filled(m.tensors, [next(left) for _ in parts(m.tensors)]) for m in incoming]
        return sent, arrivals


class AnnouncedShapes:
    """Receives messages of any shape, dtype and number of tensors; see the module's text.

    Args:
        transport: moves headers and data.
        device: of headers and received tensors.
        in_one_queue: whether groups with different peers share a communicator.
    """

    def __init__(
        self, transport: Transport, *, device: torch.device | int | str, in_one_queue: bool
    ) -> None:
        self._transport = transport
        self._device = device
        self._in_one_queue = in_one_queue
        self._unsettled: list[_Announced] = []

    def exchange(
        self, peer: int, *, sends: Sequence[Message], receives: Sequence[Transfer]
    ) -> tuple[list[Handle], list[Arrival]]:
        same_queue = [g for g in self._unsettled if self._in_one_queue or g.peer == peer]
        if same_queue:
            self.settle(same_queue[-1])
        headers = [_header(m.transfer, shape_header.write(m.tensors, self._device)) for m in sends]
        expected = [_header(t, shape_header.empty(self._device)) for t in receives]
        handles = self._transport.exchange(peer, sends=headers, receives=expected)
        group = _Announced(peer, sends, headers, expected, handles)
        self._unsettled.append(group)
        if not receives:
            self.settle(group)
        return (
            [_AnnouncedSend(self, group, number) for number in range(len(sends))],
            [_AnnouncedArrival(self, group, number) for number in range(len(receives))],
        )

    def settle(self, last: _Announced) -> None:
        """Post the data of all groups up to this one whose data was not posted yet."""
        while last in self._unsettled:
            group = self._unsettled.pop(0)
            for handle in group.header_handles:
                handle.wait()
            group.incoming = [
                Message(header.transfer, shape_header.read(header.tensor))
                for header in group.expected
            ]
            handles = iter(
                self._transport.exchange(
                    group.peer,
                    sends=[parcel for message in group.sends for parcel in _parcels(message)],
                    receives=[parcel for message in group.incoming for parcel in _parcels(message)],
                )
            )
            group.sent = [_Together([next(handles) for _ in parts(m.tensors)]) for m in group.sends]
            group.arrivals = [
                _Filled(m.tensors, [next(handles) for _ in parts(m.tensors)])
                for m in group.incoming
            ]


@dataclass(eq=False)
class _Announced:
    """A group whose headers are posted; the last three fields are there once it is settled."""

    peer: int
    sends: Sequence[Message]
    headers: list[Parcel]
    expected: list[Parcel]
    header_handles: list[Handle]
    incoming: list[Message] = field(default_factory=list)
    sent: list[Handle] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)


@dataclass(frozen=True)
class _AnnouncedSend:
    messenger: AnnouncedShapes
    group: _Announced
    number: int

    def wait(self) -> None:
        self.messenger.settle(self.group)
        self.group.sent[self.number].wait()


@dataclass(frozen=True)
class _AnnouncedArrival:
    messenger: AnnouncedShapes
    group: _Announced
    number: int

    def wait(self) -> Tensors:
        self.messenger.settle(self.group)
        return self.group.arrivals[self.number].wait()


@dataclass(frozen=True)
class _Together:
    """Several handles as one."""

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


def _header(transfer: Transfer, tensor: torch.Tensor) -> Parcel:
    return Parcel(transfer, tensor, _HEADER_PART)


def _parcels(message: Message) -> list[Parcel]:
    return [Parcel(message.transfer, t, part) for part, t in enumerate(parts(message.tensors))]

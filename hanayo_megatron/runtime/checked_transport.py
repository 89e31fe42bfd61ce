"""Sends with every tensor who it is and a checksum, and checks both on arrival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hanayo_megatron.runtime.transport import MAX_PARTS, Handle, Parcel, Transport, TransportError
from hanayo_megatron.schedule.action import Kind

_COMPANION = MAX_PARTS // 2
_FIELDS = ("step", "direction", "microbatch", "source stage", "target stage", "part", "bytes")


class MessageError(TransportError):
    """What arrived is not what was expected."""


class CheckedTransport:
    """Wraps a transport; every parcel has a companion in the same group, right behind it.

    The stages are stage ids, so they tell replicas apart. The host waits for what arrives, so this
    is for finding faults, not for training fast.

    Args:
        transport: moves parcels and companions.
        step: counted alike on all ranks; a message left over from another step is found by it.
    """

    def __init__(self, transport: Transport, *, step: int) -> None:
        self._transport = transport
        self._step = step

    def exchange(
        self, peer: int, *, sends: Sequence[Parcel], receives: Sequence[Parcel]
    ) -> list[Handle]:
        companions = [_companion(p, self._identity(p) + checksums(p.tensor)) for p in sends]
        expected = [_companion(p, [-1] * (len(_FIELDS) + 2)) for p in receives]
        handles = self._transport.exchange(
            peer, sends=_alternating(sends, companions), receives=_alternating(receives, expected)
        )
        split = 2 * len(sends)
        sent = [_Sent(handles[n], handles[n + 1]) for n in range(0, split, 2)]
        arrivals = [
            _Arrival(handles[n], handles[n + 1], parcel, companion.tensor, self._identity(parcel))
            for n, parcel, companion in zip(
                range(split, len(handles), 2), receives, expected, strict=True
            )
        ]
        return [*sent, *arrivals]

    def _identity(self, parcel: Parcel) -> list[int]:
        transfer = parcel.transfer
        return [
            self._step,
            int(transfer.kind is Kind.F),
            transfer.microbatch,
            transfer.source_stage,
            transfer.target_stage,
            parcel.part,
            parcel.tensor.numel() * parcel.tensor.element_size(),
        ]


def checksums(tensor: torch.Tensor) -> list[int]:
    """Two sums over the bytes of a tensor; the second one depends on their order."""
    data = tensor.detach().reshape(-1).view(torch.uint8).to(torch.int64)
    places = torch.arange(1, data.numel() + 1, device=data.device)
    return [int(data.sum()), int((data * places).sum())]


@dataclass(frozen=True)
class _Sent:
    parcel: Handle
    companion: Handle

    def wait(self) -> None:
        self.parcel.wait()
        self.companion.wait()


@dataclass(frozen=True)
class _Arrival:
    handle: Handle
    companion_handle: Handle
    parcel: Parcel
    companion: torch.Tensor
    identity: list[int]

    def wait(self) -> None:
        self.handle.wait()
        self.companion_handle.wait()
        *identity, first, second = self.companion.tolist()
        if identity != self.identity:
            raise MessageError(
                f"expected the {self.parcel.transfer}; the message that came differs in "
                + ", ".join(
                    f"{name}: expected {expected}, got {got}"
                    for name, expected, got in zip(_FIELDS, self.identity, identity, strict=True)
                    if expected != got
                )
            )
        if checksums(self.parcel.tensor) != [first, second]:
            raise MessageError(
                f"the {self.parcel.transfer} arrived with other bytes than it was sent "
                "with: they were changed while they were being sent, or on the way"
            )


def _companion(parcel: Parcel, numbers: list[int]) -> Parcel:
    tensor = torch.tensor(numbers, dtype=torch.int64, device=parcel.tensor.device)
    return Parcel(parcel.transfer, tensor, _COMPANION + parcel.part)


def _alternating(parcels: Sequence[Parcel], companions: Sequence[Parcel]) -> list[Parcel]:
    return [p for pair in zip(parcels, companions, strict=True) for p in pair]

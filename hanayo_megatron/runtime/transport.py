"""How tensors get from one rank to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from hanayo_megatron.lowering.operation import Transfer

MAX_PARTS = 16
"""Tensors that belong to one transfer at most; a part's number fits into a gloo tag with it."""


class TransportError(RuntimeError):
    """Transfers that would hang or corrupt memory, or that did."""


class Parcel(NamedTuple):
    """One tensor of a transfer: what it reads from or writes to.

    ``part`` tells apart the tensors that belong to one transfer, 0..MAX_PARTS-1.
    """

    transfer: Transfer
    tensor: torch.Tensor
    part: int = 0


class Handle(Protocol):
    """A transfer under way."""

    def wait(self) -> object:
        """Until the received data may be read, or the sent data overwritten."""
        ...


class Transport(Protocol):
    """Moves groups of tensors between ranks, in the order in which they are posted."""

    def exchange(
        self, peer: int, *, sends: Sequence[Parcel], receives: Sequence[Parcel]
    ) -> list[Handle]:
        """Start a group with a peer rank; a handle for each send, then for each receive."""
        ...

"""How tensors get from one rank to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from hanayo_megatron.lowering.operation import Transfer


class Parcel(NamedTuple):
    """A transfer and the tensor that it reads from or writes to."""

    transfer: Transfer
    tensor: torch.Tensor


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

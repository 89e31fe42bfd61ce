"""Who may watch an executor at work."""

from __future__ import annotations

from typing import Protocol

from hanayo_megatron.lowering.operation import Operation, Transfer


class Observer(Protocol):
    """Told what the executor does, in its thread; must not raise and must be quick."""

    def begin(self, operation: Operation) -> None:
        """An operation starts."""
        ...

    def end(self, operation: Operation) -> None:
        """It was issued: on a GPU its kernels may still run."""
        ...

    def begin_wait(self, transfer: Transfer) -> None:
        """The operation at work needs a transfer that may be under way still."""
        ...

    def end_wait(self, transfer: Transfer) -> None:
        """It may go on: on a GPU, as soon as the stream gets past the transfer."""
        ...

"""What a rank's action list is made of."""

from __future__ import annotations

from typing import NamedTuple

from hanayo_megatron.schedule.action import Action, Kind


class Transfer(NamedTuple):
    """One tensor moving between two ranks.

    ``kind`` F carries the activation that ``target_stage`` = ``source_stage`` + 1 reads; kind B
    carries the gradient of its output to ``target_stage`` = ``source_stage`` - 1.
    """

    kind: Kind
    microbatch: int
    source_stage: int
    target_stage: int
    source: int
    target: int

    def __str__(self) -> str:
        what = "activation" if self.kind is Kind.F else "gradient"
        return (
            f"{what} of microbatch {self.microbatch}"
            f" from stage {self.source_stage} on rank {self.source}"
            f" to stage {self.target_stage} on rank {self.target}"
        )


class Compute(NamedTuple):
    """Run an action, once the transfer that it reads has arrived."""

    action: Action


class Announce(NamedTuple):
    """Tell the peer the shapes of what an Exchange will send; both sides post the same group."""

    peer: int
    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]


class Exchange(NamedTuple):
    """Start a group of transfers with one peer; both sides post the same group.

    Where the shapes of what is received were announced, it first waits for them.
    """

    peer: int
    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]


class Free(NamedTuple):
    """Wait until the tensor was sent, then drop it."""

    transfer: Transfer


class SyncGradients(NamedTuple):
    """All weight gradients of the stage are there: their data-parallel reduction may start."""

    stage: int


Group = Announce | Exchange
Operation = Compute | Announce | Exchange | Free | SyncGradients

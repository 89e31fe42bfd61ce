"""Gives each copy of the model its own microbatches out of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hanayo_megatron.megatron.stage_worker import StepRequest
from hanayo_megatron.schedule.placement import Placement


@contextmanager
def share_data(
    request: StepRequest,
    placement: Placement,
    microbatches_of_replica: Sequence[Sequence[int]],
    *,
    rank: int,
) -> Iterator[StepRequest]:
    """For one step, give every chunk of the rank an iterator over its replica's microbatches."""
    if placement.replicas == 1:
        yield request
        return
    stages = placement.stages_of[rank]
    shares = [
        None
        if iterator is None
        else ReplicaData(
            iterator,
            microbatches=microbatches_of_replica[placement.replica_of(stage)],
            num_microbatches=request.num_microbatches,
        )
        for stage, iterator in zip(stages, request.data_iterators, strict=True)
    ]
    yield replace(request, data_iterators=shares)
    for stage, share in zip(stages, shares, strict=True):
        if share is not None:
            share.finish(reads_data=placement.is_first(stage) or placement.is_last(stage))


class ReplicaData:
    """A chunk's data iterator for one step, leaving out what the other copy reads.

    Megatron's iterator yields all microbatches of the step in order, for every chunk that reads
    data. After ``finish`` it stands behind the last of them, as after a step without copies.

    Args:
        iterator: the chunk's own.
        microbatches: what the chunk reads, ascending.
        num_microbatches: M.
    """

    def __init__(
        self, iterator: Iterator, *, microbatches: Sequence[int], num_microbatches: int
    ) -> None:
        self._iterator = iterator
        self._unread = iter(microbatches)
        self._num_microbatches = num_microbatches
        self._position = 0

    def __iter__(self) -> ReplicaData:
        return self

    def __next__(self) -> Any:
        self._skip(until=next(self._unread))
        self._position += 1
        return next(self._iterator)

    def finish(self, *, reads_data: bool) -> None:
        """Leave the rest of the step out; a chunk in the middle of the model never read any."""
        if reads_data or self._position > 0:
            self._skip(until=self._num_microbatches)

    def _skip(self, *, until: int) -> None:
        while self._position < until:
            next(self._iterator)
            self._position += 1

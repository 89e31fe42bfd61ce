"""Gives every microbatch its own samples, in whatever order a schedule runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hanayo_megatron.errors import OneRankError


class EndOfDataError(OneRankError, EOFError):
    """A data iterator ended within a step."""


class ItemCountError(OneRankError):
    """A microbatch that took another number of items than one."""


@contextmanager
def explaining_end_of_data(chunk: int, microbatch: int) -> Iterator[None]:
    """Raise EndOfDataError in place of StopIteration."""
    try:
        yield
    except StopIteration as error:
        raise EndOfDataError(
            f"the data iterator of chunk {chunk} ended before microbatch {microbatch} of this "
            "step; every step takes one item a microbatch from each iterator. Give more samples, "
            "or train or evaluate fewer iterations"
        ) from error


class MicrobatchReader:
    """A chunk's data iterator that can be asked for any of the step's microbatches.

    The iterator below yields microbatches 0..M-1 of the step in order. Those that come before the
    one that is asked for are kept if the chunk runs them later, and dropped otherwise: another
    replica of the model reads them. Every step takes M items, also one in which the chunk runs
    nothing.

    Args:
        iterator: Megatron's own for the chunk.
        chunk: whose iterator it is, for messages.
        wanted: microbatches that the chunk runs, in any order.
        total: M.
    """

    def __init__(
        self,
        iterator: Iterator,
        *,
        chunk: int,
        wanted: Sequence[int],
        total: int,
    ) -> None:
        self._iterator = iterator
        self._chunk = chunk
        self._wanted = set(wanted)
        self._total = total
        self._position = 0
        self._kept: dict[int, Any] = {}
        self._selected: int | None = None

    def select(self, microbatch: int) -> None:
        """The microbatch that the next ``next()`` is for."""
        self._selected = microbatch

    def __iter__(self) -> MicrobatchReader:
        return self

    def __next__(self) -> Any:
        microbatch, self._selected = self._selected, None
        if microbatch is None:
            raise ItemCountError(
                "forward_step took more than one item of the data iterator for one microbatch; "
                "a schedule that runs microbatches out of order needs one item each"
            )
        while self._position <= microbatch:
            self._read()
        return self._kept.pop(microbatch)

    def finish(self) -> None:
        """Leave the iterator below at the start of the next step."""
        while self._position < self._total:
            with explaining_end_of_data(self._chunk, self._position):
                self._read()

    def _read(self) -> None:
        item = next(self._iterator)
        if self._position in self._wanted:
            self._kept[self._position] = item
        self._position += 1

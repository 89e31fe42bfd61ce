"""A chunk reads the microbatches that it runs, and leaves the iterator at the next step."""

import pytest

from hanayo_megatron.megatron.microbatch_data import (
    EndOfDataError,
    ItemCountError,
    MicrobatchReader,
)


def reader(items, wanted, total=4):
    return MicrobatchReader(iter(items), chunk=1, wanted=wanted, total=total)


def read(chunk_reader, microbatch):
    chunk_reader.select(microbatch)
    return next(chunk_reader)


def test_items_come_in_the_order_asked_for_and_the_rest_is_dropped():
    items = iter(range(10))
    odd = MicrobatchReader(items, chunk=0, wanted=[3, 1], total=4)
    assert [read(odd, 3), read(odd, 1)] == [3, 1]
    odd.finish()
    assert next(items) == 4


def test_a_step_in_which_the_chunk_runs_nothing_passes_over_its_data():
    items = iter(range(10))
    MicrobatchReader(items, chunk=0, wanted=[], total=4).finish()
    assert next(items) == 4


def test_data_that_end_behind_the_last_microbatch_of_a_copy_are_named():
    even = reader(range(3), wanted=[0, 2])
    assert [read(even, 0), read(even, 2)] == [0, 2]
    with pytest.raises(EndOfDataError, match="iterator of chunk 1 ended before microbatch 3"):
        even.finish()


def test_a_second_item_for_one_microbatch_is_refused():
    even = reader(range(4), wanted=[0, 2])
    read(even, 0)
    with pytest.raises(ItemCountError, match="more than one item"):
        next(even)

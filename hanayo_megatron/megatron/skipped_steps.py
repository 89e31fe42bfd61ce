"""Steps that Megatron leaves out (``--iterations-to-skip``): their data go by unread."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megatron.core.num_microbatches_calculator import get_num_microbatches
from megatron.core.rerun_state_machine import get_rerun_state_machine

from hanayo_megatron.megatron.hooks import Hook


def skipping_hook() -> Hook:
    """Megatron reads one data iterator, which every rank must have; here each chunk has its own."""
    return Hook("megatron.training.training:dummy_train_step", ("data_iterator",), _in_every_chunk)


def _in_every_chunk(original: Callable) -> Callable:
    def dummy_train_step(data_iterator: Iterator | list[Iterator | None] | None) -> None:
        """Take a step's microbatches from the iterators of all chunks that read data."""
        iterators = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        while get_rerun_state_machine().should_run_forward_backward(data_iterator):
            for iterator in iterators:
                if iterator is not None:
                    for _ in range(get_num_microbatches()):
                        next(iterator)

    return dummy_train_step

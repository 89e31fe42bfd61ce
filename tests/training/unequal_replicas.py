"""The pretraining entry with one microbatch more on the second data-parallel replica."""

import sys

from hanayo_megatron.run import prepare

sys.argv[1:] = prepare(sys.argv[1:])

from megatron.core import parallel_state  # noqa: E402
from megatron.training import training  # noqa: E402

from hanayo_megatron import pretrain_gpt  # noqa: E402

_agreed = training.get_num_microbatches


def _disagreed() -> int:
    return _agreed() + parallel_state.get_data_parallel_rank()


if __name__ == "__main__":
    training.get_num_microbatches = _disagreed
    pretrain_gpt.main(sys.argv[1:])

"""The pretraining entry with one microbatch more on the second data-parallel replica.

For the launcher, whose ranks have Megatron imported already.
"""

import sys

from megatron.core import parallel_state
from megatron.training import training

from hanayo_megatron import pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_agreed = training.get_num_microbatches


def _disagreed() -> int:
    return _agreed() + parallel_state.get_data_parallel_rank()


if __name__ == "__main__":
    training.get_num_microbatches = _disagreed
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])

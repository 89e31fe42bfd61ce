"""The pretraining entry with sequences of another length in every microbatch."""

import sys
from collections import Counter

from megatron.training import get_args

from hanayo_megatron import gpt_training, pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_LENGTHS = (32, 20, 24, 8, 28)

_get_batch = gpt_training._get_batch
_check_supported = gpt_training.check_supported
_microbatches_seen = Counter()


def _get_shorter_batch(data_iterator, model):
    """All chunks see the microbatches in one order, so their counts name the same length."""
    length = _LENGTHS[_microbatches_seen[model] % len(_LENGTHS)]
    _microbatches_seen[model] += 1
    batch = _get_batch(data_iterator, model)
    cut = {"attention_mask": lambda mask: mask[..., :length, :length]}
    shorten = {key: cut.get(key, lambda tensor: tensor[:, :length].contiguous()) for key in batch}
    return {key: None if t is None else shorten[key](t) for key, t in batch.items()}


def _allow_varied_lengths(args):
    _check_supported(args)
    get_args().variable_seq_lengths = True


if __name__ == "__main__":
    gpt_training._get_batch = _get_shorter_batch
    gpt_training.check_supported = _allow_varied_lengths
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])

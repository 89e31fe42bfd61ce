"""The pretraining entry whose data end in the middle of the second step."""

import sys
from itertools import islice

from megatron.training import training

from hanayo_megatron import pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_plain_iterators = training.build_train_valid_test_data_iterators


def _short(*args, **kwargs):
    train, valid, test = _plain_iterators(*args, **kwargs)
    if train is not None:
        train.iterable = islice(train.iterable, 6)
    return train, valid, test


if __name__ == "__main__":
    training.build_train_valid_test_data_iterators = _short
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])

"""The pretraining entry with a loss mask that leaves every microbatch another number of tokens.

With `LOSS_RETURNS=2` in the environment its loss function is of Megatron's older kind: the mean
over the microbatch's tokens and the values to log.
"""

import os
import sys
from functools import partial

from hanayo_megatron import gpt_training, pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_plain_forward_step = gpt_training.forward_step


def _forward_step(data_iterator, model):
    output, loss = _plain_forward_step(_masked(data_iterator), model)
    return output, partial(_mean, loss) if os.environ.get("LOSS_RETURNS") == "2" else loss


def _masked(samples):
    sample = next(samples)
    yield {**sample, "loss_mask": (sample["labels"] % 5 > 1).float()}


def _mean(loss_function, output):
    total, num_tokens, report = loss_function(output)
    return total / num_tokens, report


if __name__ == "__main__":
    gpt_training.forward_step = _forward_step
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])

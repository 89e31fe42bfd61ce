"""The pretraining entry with two calls of the schedule before each step of the optimizer.

As reinforcement learning does; the gradients are finalized after the second call only.
"""

import sys

from megatron.core.utils import get_model_config
from megatron.training import training

from hanayo_megatron import pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_plain = training.get_forward_backward_func


def _twice(**kwargs):
    schedule = _plain(**kwargs)

    def call(**step):
        if step["forward_only"]:
            return schedule(**step)
        config = get_model_config(step["model"][0])
        finalize, config.finalize_model_grads_func = config.finalize_model_grads_func, None
        losses = schedule(**step)
        config.finalize_model_grads_func = finalize
        return losses + schedule(**step)

    return call


if __name__ == "__main__":
    training.get_forward_backward_func = _twice
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])

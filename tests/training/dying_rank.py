"""The pretraining entry; rank DYING_RANK does HOW.

In the forward of its third microbatch: kill (as by kill -9), hang (stop for ever), raise, exit
(sys.exit). return: ends before its second step. linger: ends six seconds after the others.
"""

import os
import signal
import sys
import time

from megatron.training import training

from hanayo_megatron import gpt_training, pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_forward_step = gpt_training.forward_step
_train_step = training.train_step
_calls = 0
_steps = 0


def _forward_step_that_ends(data_iterator, model):
    global _calls
    _calls += 1
    if _calls == 3:
        how = os.environ["HOW"]
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(1000)
        if how == "exit":
            sys.exit(3)
        if how == "raise":
            raise ValueError("a bug in the user's code")
    return _forward_step(data_iterator, model)


def _train_step_that_ends(*args, **kwargs):
    global _steps
    _steps += 1
    if _steps == 2 and os.environ["HOW"] == "return":
        sys.exit(0)
    return _train_step(*args, **kwargs)


if __name__ == "__main__":
    is_dying = os.environ["RANK"] == os.environ["DYING_RANK"]
    if is_dying:
        gpt_training.forward_step = _forward_step_that_ends
        training.train_step = _train_step_that_ends
    try:
        with errors_on_one_line():
            pretrain_gpt.main(sys.argv[1:])
    finally:
        if is_dying and os.environ["HOW"] == "linger":
            time.sleep(6)

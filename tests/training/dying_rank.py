"""The pretraining entry; rank DYING_RANK does HOW in the forward of its third microbatch.

HOW: kill (as by kill -9), hang (stop for ever), raise.
"""

import os
import signal
import sys
import time

from hanayo_megatron import gpt_training, pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_forward_step = gpt_training.forward_step
_calls = 0


def _forward_step_that_ends(data_iterator, model):
    global _calls
    _calls += 1
    if os.environ["RANK"] == os.environ["DYING_RANK"] and _calls == 3:
        how = os.environ["HOW"]
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(1000)
        raise ValueError("a bug in the user's code")
    return _forward_step(data_iterator, model)


if __name__ == "__main__":
    gpt_training.forward_step = _forward_step_that_ends
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])

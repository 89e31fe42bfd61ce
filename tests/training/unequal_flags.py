"""The pretraining entry with other flags on one rank: UNEQUAL="rank flag value"."""

import os
import sys

from hanayo_megatron import pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

if __name__ == "__main__":
    rank, flag, value = os.environ["UNEQUAL"].split()
    arguments = sys.argv[1:]
    if os.environ["RANK"] == rank:
        arguments = [*arguments, flag, value]
    with errors_on_one_line():
        pretrain_gpt.main(arguments)

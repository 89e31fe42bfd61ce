"""The pretraining entry; one copy of one weight is another one after loading a checkpoint."""

import sys
from typing import Any

import torch.distributed as dist
from megatron.core.models.gpt import GPTModel

from hanayo_megatron import pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_load = GPTModel.load_state_dict


def _load_damaged(self: GPTModel, *args: Any, **kwargs: Any) -> Any:
    loaded = _load(self, *args, **kwargs)
    if dist.get_rank() == 1 and self.vp_stage == 1:
        self.decoder.layers[0].mlp.linear_fc1.weight.data.add_(1)
    return loaded


if __name__ == "__main__":
    GPTModel.load_state_dict = _load_damaged
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])

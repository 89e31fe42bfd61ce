"""The pretraining entry, with which optimizer shards can be loaded where torch has the only Adam.

Without Apex or TransformerEngine, Megatron 0.19.2 asks an optimizer for its step count before
anything was loaded into it, copies into weights under autograd, looks for a step count among the
shards, and gives all shards one and the same step count, which every one of them increments. All of
it is so without a pipeline schedule of ours, too.

For the launcher, whose ranks have Megatron imported already.
"""

import sys

import torch
from megatron.core import optimizer as optimizers
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.training import checkpointing, training

from hanayo_megatron import pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_set_states = DistributedOptimizer._set_main_param_and_optimizer_states


def _set_states_but_step(self, model_param, tensors):
    _set_states(self, model_param, {**tensors, "step": None})


def _optimizer_with_step_count(*args, **kwargs):
    optimizer = optimizers.get_megatron_optimizer(*args, **kwargs)
    for part in optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            for shard in group["params"]:
                part.optimizer.state[shard] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(shard),
                    "exp_avg_sq": torch.zeros_like(shard),
                }
    return optimizer


@torch.no_grad()
def _load(model, optimizer, *args, **kwargs):
    loaded = checkpointing.load_checkpoint(model, optimizer, *args, **kwargs)
    for part in optimizer.chained_optimizers:
        for state in part.optimizer.state.values():
            state["step"] = state["step"].clone()
    return loaded


if __name__ == "__main__":
    DistributedOptimizer._set_main_param_and_optimizer_states = _set_states_but_step
    training.get_megatron_optimizer = _optimizer_with_step_count
    training.load_checkpoint = _load
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])

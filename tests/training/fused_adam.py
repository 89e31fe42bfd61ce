"""The pretraining entry with an Adam that counts steps as Apex's and Transformer Engine's do.

With PyTorch's own, Megatron 0.19.2 saves the distributed optimizer but cannot load it: it asks an
optimizer without state for its step (distrib_optimizer.py:838), and later for a saved one (:1223).
"""

import sys

import torch
from megatron.core import optimizer
from megatron.core.optimizer import distrib_optimizer

from hanayo_megatron import pretrain_gpt
from hanayo_megatron.run import errors_on_one_line


class _Adam(torch.optim.Optimizer):
    def __init__(self, params, *, lr, betas, eps, weight_decay, **_):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)

    def _update(self, weight, group):
        state = self.state[weight]
        if not state:
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        first, second = group["betas"]
        state["exp_avg"].lerp_(weight.grad, 1 - first)
        state["exp_avg_sq"].lerp_(weight.grad.square(), 1 - second)
        mean = state["exp_avg"] / (1 - first ** group["step"])
        square = state["exp_avg_sq"] / (1 - second ** group["step"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.sub_(group["lr"] * mean / (square.sqrt() + group["eps"]))


if __name__ == "__main__":
    optimizer.Adam = distrib_optimizer.Adam = _Adam
    optimizer.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])

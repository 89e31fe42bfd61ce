"""The pretraining entry; every rank writes what it holds at the end as one line of JSON.

For the launcher, whose ranks have Megatron imported already.
"""

import hashlib
import json
import sys

import torch
from megatron.core import parallel_state
from megatron.training import training

from hanayo_megatron import pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_set_up = training.setup_model_and_optimizer
_held = []


def _set_up_and_keep(*args, **kwargs):
    model, optimizer, scheduler = _set_up(*args, **kwargs)
    _held.extend((model, optimizer))
    return model, optimizer, scheduler


def report():
    """Digest of every parameter, and bytes of parameters and optimizer state."""
    model, optimizer = _held
    digests = {
        f"{index}.{name}": hashlib.sha1(parameter.detach().float().numpy().tobytes()).hexdigest()
        for index, chunk in enumerate(model)
        for name, parameter in chunk.named_parameters()
    }
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    state = {
        id(tensor): tensor.nbytes
        for part in parts
        for values in part.optimizer.state.values()
        for tensor in values.values()
        if isinstance(tensor, torch.Tensor)
    }
    return {
        "pp_rank": parallel_state.get_pipeline_model_parallel_rank(),
        "digests": digests,
        "parameter_bytes": sum(p.nbytes for chunk in model for p in chunk.parameters()),
        "optimizer_bytes": sum(state.values()),
    }


if __name__ == "__main__":
    training.setup_model_and_optimizer = _set_up_and_keep
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])
        print("\nstate report:", json.dumps(report()), flush=True)  # noqa: T201

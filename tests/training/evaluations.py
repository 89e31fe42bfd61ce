"""The pretraining entry with evaluations wherever `ORDER` wants them: "ETE", "EETT", ...

Every rank writes what it got from the drop-in function when asked for other data than losses, and
whether each chunk and config is after an evaluation as it was before.
"""

import os
import sys

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.training import get_args, training

from hanayo_megatron import gpt_training, pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_plain_train = training.train
_plain_train_step = training.train_step
_valid_iterator = None
_evaluations = [len(evaluations) for evaluations in os.environ["ORDER"].split("T")]


def _train(step, model, optimizer, scheduler, train_iterator, valid_iterator, *rest, **named):
    global _valid_iterator
    _valid_iterator = valid_iterator
    result = _plain_train(
        step, model, optimizer, scheduler, train_iterator, valid_iterator, *rest, **named
    )
    _evaluate(model, training.get_model_config(model[0]))
    return result


def _train_step(step, iterator, model, optimizer, scheduler, config, *rest, **named):
    _evaluate(model, config)
    return _plain_train_step(step, iterator, model, optimizer, scheduler, config, *rest, **named)


def _evaluate(model, config):
    for _ in range(_evaluations.pop(0)):
        before = dict(vars(config))
        losses, _, _ = training.evaluate(
            gpt_training.forward_step, _valid_iterator, model, None, config, eval_iters=1
        )
        _say("evaluated", {name: value.tolist() for name, value in losses.items()})
        _say("collected", _collect(model))
        _say("modes", [module.training for chunk in model for module in chunk.modules()])
        _say("changed", [name for name, value in vars(config).items() if value is not before[name]])


def _collect(model):
    """Norms of the last stage's outputs, which the schedule hands over instead of losses."""
    args = get_args()
    for chunk in model:
        chunk.eval()

    def step(iterator, chunk):
        output, _ = gpt_training.forward_step(iterator, chunk)
        return output, lambda output, non_loss_data: output.float().norm().item()

    with torch.no_grad():
        found = get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=_valid_iterator,
            model=model,
            num_microbatches=2,
            seq_length=args.seq_length,
            micro_batch_size=args.eval_micro_batch_size,
            forward_only=True,
            collect_non_loss_data=True,
        )
    for chunk in model:
        chunk.train()
    return found


def _say(what, value):
    sys.stdout.write(f"@{what} {value}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    training.train = _train
    training.train_step = _train_step
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])

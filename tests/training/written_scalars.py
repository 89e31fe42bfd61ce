"""The pretraining entry with a TensorBoard that writes to stdout: `@scalar name step value`."""

import sys
from types import ModuleType

from megatron.core import timers

from hanayo_megatron import pretrain_gpt
from hanayo_megatron.run import errors_on_one_line


class _Writer:
    def __init__(self, **kwargs):
        pass

    def add_scalar(self, name, value, step, **kwargs):
        sys.stdout.write(f"@scalar {name.replace(' ', '_')} {step} {float(value)!r}\n")

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


if __name__ == "__main__":
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = _Writer
    module.writer = ModuleType("torch.utils.tensorboard.writer")
    module.writer.SummaryWriter = _Writer
    sys.modules["torch.utils.tensorboard"] = module
    sys.modules["torch.utils.tensorboard.writer"] = module.writer
    timers.SummaryWriter = _Writer
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])

"""Megatron without a GPU: the unmodified trainer on CPU processes under gloo.

    argv = cpu.install(argv)      # before Megatron is imported

Chosen by itself where PyTorch sees no GPU, and with `--cpu` (or HANAYO_CPU=1) where it sees one.
Where it is not chosen nothing of PyTorch or Megatron is touched.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence

FLAG = "--cpu"
ENVIRONMENT_VARIABLE = "HANAYO_CPU"

logger = logging.getLogger(__name__)


def is_active() -> bool:
    """Whether the CPU stands in for the GPU in this process."""
    if "torch" not in sys.modules:
        return False
    from hanayo_megatron.cpu import device

    return device.is_redirected()


def install(argv: Sequence[str]) -> list[str]:
    """Prepare PyTorch for Megatron on CPUs, if the CPU is asked for or all there is.

    Args:
        argv: the arguments meant for Megatron, with or without `--cpu`.

    Returns:
        The arguments without `--cpu`, behind the flags that CPUs need: a flag that `argv` holds
        already is not added, so the user's own choice wins.

    Raises:
        RuntimeError: Megatron was imported before.
    """
    arguments = [argument for argument in argv if argument != FLAG]
    asked = len(arguments) < len(argv) or os.environ.get(ENVIRONMENT_VARIABLE, "0") != "0"
    if not is_active():
        if not asked and _gpu_is_there():
            return arguments
        redirect()
    return _with_defaults(arguments, reason="it was asked for" if asked else "no GPU was found")


def redirect() -> None:
    """Put the CPU in the place of the GPU in this process, whatever devices there are.

    Raises:
        RuntimeError: Megatron was imported before.
    """
    if "megatron.core" in sys.modules:
        raise RuntimeError(
            "hanayo_megatron.cpu was asked for after Megatron was imported, which keeps "
            "what it imported from torch. Call it first, or start the script through "
            "`python -m hanayo_megatron.run SCRIPT ...`."
        )
    from hanayo_megatron.cpu import compilation, device, distributed, tensors

    device.redirect_device()
    tensors.redirect_tensors()
    distributed.redirect_distributed()
    compilation.disable_torch_compile()
    compilation.use_built_dataset_helper()
    _silence()


def _silence() -> None:
    """Drop the warnings that hold for every CPU run, one for each dropout and data loader."""
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true")
    megatron_random = logging.getLogger("megatron.core.tensor_parallel.random")
    megatron_random.addFilter(lambda record: "CPU RNG state changed" not in record.getMessage())


def _gpu_is_there() -> bool:
    import torch

    return torch.cuda.is_available()


def _with_defaults(arguments: list[str], *, reason: str) -> list[str]:
    from hanayo_megatron.cpu.defaults import missing_defaults

    added = missing_defaults(arguments)
    if os.environ.get("RANK", "0") == "0":
        logger.warning("Training on CPUs, since %s; added %s", reason, " ".join(added))
    return [*added, *arguments]

"""Leaves nothing to compile: neither Megatron's fused functions nor its dataset helper."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def disable_torch_compile() -> None:
    """Make `torch.compile` return the function it is given.

    Megatron decorates its fused functions with it at import. Compiling them for CPUs takes
    minutes, and even the decoration alone imports the compiler (1.3 s per process).
    """
    torch.compile = _run_eagerly


def use_built_dataset_helper() -> None:
    """Keep Megatron from running `make` for its dataset helper where a built one is installed.

    The wheels ship the built helper and no Makefile; a checkout has sources only, so it is lent
    the helper of an installed wheel. Imports megatron.core.
    """
    from megatron.core import datasets
    from megatron.core.datasets import utils

    if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is None:
        datasets.__path__.extend(_folders_with_built_helper())
    if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is not None:
        utils.compile_helpers = _helper_is_built


def _folders_with_built_helper() -> list[str]:
    folders = (Path(entry, "megatron", "core", "datasets") for entry in sys.path)
    return [str(folder) for folder in folders if any(folder.glob("helpers_cpp*.so"))]


def _run_eagerly(model: Callable | None = None, **_: Any) -> Callable:
    return _same if model is None else model


def _same(function: Callable) -> Callable:
    return function


def _helper_is_built() -> None:
    pass

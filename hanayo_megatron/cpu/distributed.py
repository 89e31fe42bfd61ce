"""Lets `torch.distributed` run on gloo whatever backend is asked for."""

from __future__ import annotations

import atexit
import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed

_LONGEST_WAIT_AT_EXIT = 5.0  # seconds


def redirect_distributed() -> None:
    """Make every process group a gloo group and give gloo the argument types it understands."""
    _replace("init_process_group", _on_gloo)
    _replace("new_group", _on_gloo)
    _replace("all_to_all_single", _with_int_sizes)
    atexit.register(_let_other_threads_finish)


def _replace(name: str, wrap: Callable[[Callable], Callable]) -> None:
    replacement = wrap(getattr(torch.distributed, name))
    setattr(torch.distributed, name, replacement)
    setattr(torch.distributed.distributed_c10d, name, replacement)


def _on_gloo(function: Callable) -> Callable:
    @functools.wraps(function)
    def create(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("backend") not in (None, "fake"):
            kwargs["backend"] = "gloo"
        for nccl_only in ("pg_options", "device_id"):
            kwargs.pop(nccl_only, None)
        return function(*args, **kwargs)

    return create


def _with_int_sizes(function: Callable) -> Callable:
    """NCCL takes split sizes as tensors, gloo only as lists of ints."""

    @functools.wraps(function)
    def all_to_all_single(
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | torch.Tensor | None = None,
        input_split_sizes: Sequence[int] | torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        return function(
            output, input, _as_ints(output_split_sizes), _as_ints(input_split_sizes), **kwargs
        )

    return all_to_all_single


def _as_ints(sizes: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    return None if sizes is None else [int(size) for size in sizes]


def _let_other_threads_finish() -> None:
    """Wait, with the interpreter's lock free, until no other thread of the process runs.

    A thread of gloo may be the last to hold a tensor and needs the interpreter to free it. If that
    ends before, the whole process aborts ("terminate called without an active exception"), after
    a training that succeeded.
    """
    deadline = time.monotonic() + _LONGEST_WAIT_AT_EXIT
    while time.monotonic() < deadline:
        time.sleep(0.001)
        if not any(_runs(thread) for thread in Path("/proc/self/task").glob("[0-9]*")):
            return


def _runs(thread: Path) -> bool:
    if thread.name == str(os.getpid()):
        return False
    try:
        return thread.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:  # ended meanwhile
        return False

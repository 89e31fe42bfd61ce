"""Lets tensors be asked for on "cuda" and puts them on the CPU.

A `TorchFunctionMode` would catch every call in one place, but it costs 0.9 us for each operation
and each attribute of a tensor (a step of a tiny GPT took 74 ms instead of 56), and holds for one
thread only. Replacing the functions that take a device costs the others nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_FACTORIES = (
    *("tensor", "as_tensor", "scalar_tensor", "asarray", "from_file", "complex"),
    *("empty", "zeros", "ones", "full", "empty_strided", "eye"),
    *("rand", "randn", "randint", "randperm"),
    *("arange", "range", "linspace", "logspace", "tril_indices", "triu_indices"),
    *("empty_like", "zeros_like", "ones_like", "full_like"),
    *("rand_like", "randn_like", "randint_like"),
)
_METHODS = ("new_tensor", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full")


def redirect_tensors() -> None:
    """Replace torch's tensor factories and the conversions of `Tensor` and `Module`."""
    for name in _FACTORIES:
        _replace(torch, name, _with_host_device)
    for name in _METHODS:
        _replace(torch.Tensor, name, _with_host_device)
    _replace(torch.Tensor, "to", _first_argument_may_be_device)
    _replace(torch.nn.Module, "to", _first_argument_may_be_device)
    _replace(torch.nn.Module, "to_empty", _with_host_device)
    _replace(torch.Tensor, "type", _type_names_cuda)
    torch.Tensor.cuda = _stay
    torch.nn.Module.cuda = _module_stays
    torch.Tensor.pin_memory = _stay_pinned
    torch.Tensor.record_stream = _ignore_stream


def _replace(owner: Any, name: str, wrap: Callable[[Callable], Callable]) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


def _host(device: Any) -> Any:
    """The device to use instead; CUDA devices have the type "cuda" or only a number."""
    if device is None:
        return None
    if isinstance(device, torch.device):
        return "cpu" if device.type == "cuda" else device
    if isinstance(device, str):
        return "cpu" if device.startswith("cuda") else device
    return "cpu" if isinstance(device, int) else device


def _with_host_device(function: Callable) -> Callable:
    @functools.wraps(function)
    def on_host(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _host(kwargs["device"])
        return function(*args, **kwargs)

    return on_host


def _first_argument_may_be_device(method: Callable) -> Callable:
    @functools.wraps(method)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            args = (_host(args[0]), *args[1:])
        elif "device" in kwargs:
            kwargs["device"] = _host(kwargs["device"])
        return method(self, *args, **kwargs)

    return to


def _type_names_cuda(method: Callable) -> Callable:
    """Megatron's optimizers sort parameters by names such as 'torch.cuda.FloatTensor'."""

    @functools.wraps(method)
    def tensor_type(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return method(self).replace("torch.", "torch.cuda.", 1)
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.")
        return method(self, dtype, *args, **kwargs)

    return tensor_type


def _stay(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return self


def _stay_pinned(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return self


def _module_stays(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    return self


def _ignore_stream(self: torch.Tensor, stream: Any) -> None:
    pass

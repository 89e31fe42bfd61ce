"""Stages that hand on several tensors: Megatron's lists, and its backward for one tensor only."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.pipeline_parallel import schedules
from torch.autograd.graph import get_gradient_edge

from hanayo_megatron.runtime.tensors import Tensors, parts


def free(output: Tensors, config: Any) -> None:
    """Drop the data of what was handed on, if Megatron is asked to; their graph stays.

    Of several tensors those are kept that are used elsewhere: inputs passed through, buffers, and
    views.
    """
    for tensor in parts(output):
        used_elsewhere = tensor.grad_fn is None or tensor._base is not None
        if not (isinstance(output, tuple) and used_elsewhere):
            schedules.deallocate_output_tensor(tensor, config.deallocate_pipeline_outputs)


def backward(
    input_tensor: Tensors | None, output: Tensors, gradient: Tensors | None, config: Any
) -> Tensors | None:
    """The backward of one stage; its input's gradient, None for a first stage.

    Megatron's runs through the first of several tensors only. Here every tensor that needs a
    gradient gets its own, and tensors that nothing was computed from have gradients of zero.
    """
    if not isinstance(input_tensor, tuple) and not isinstance(output, tuple):
        return schedules.backward_step(input_tensor, output, gradient, config)
    if config.timers is not None:
        config.timers("backward-compute", log_level=2).start()
    if gradient is None:
        roots = [output if config.grad_scale_func is None else config.grad_scale_func(output)]
        gradients = [None]
    else:
        floating = [tensor for tensor in parts(output) if tensor.is_floating_point()]
        pairs = zip(floating, parts(gradient), strict=True)
        needed = [(tensor, g) for tensor, g in pairs if tensor.requires_grad]
        roots, gradients = [tensor for tensor, _ in needed], [g for _, g in needed]
    if roots:
        # Unlike tensors, their edges still know the shapes of data that was freed.
        torch.autograd.backward([get_gradient_edge(tensor) for tensor in roots], gradients)
    if config.timers is not None:
        config.timers("backward-compute").stop()
    if not isinstance(input_tensor, tuple):
        return None if input_tensor is None else _gradient_of(input_tensor)
    return tuple(_gradient_of(tensor) for tensor in input_tensor if tensor.requires_grad)


def _gradient_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad

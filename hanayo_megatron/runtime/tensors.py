"""What one stage hands to the next: a tensor, or a tuple of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensors = torch.Tensor | tuple[torch.Tensor, ...]


def parts(tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """The single tensors."""
    return tensors if isinstance(tensors, tuple) else (tensors,)


def each(change: Callable[[torch.Tensor], torch.Tensor], tensors: Tensors) -> Tensors:
    """The same structure with every tensor changed."""
    return tuple(map(change, tensors)) if isinstance(tensors, tuple) else change(tensors)


def require_gradients(tensors: Tensors) -> None:
    """Make leaves of all that can have a gradient; masks and indices have none."""
    for tensor in parts(tensors):
        if tensor.is_floating_point():
            tensor.requires_grad_()

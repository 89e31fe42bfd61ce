"""What one stage hands to the next: a tensor, or a tuple of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Tensors = torch.Tensor | tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor is like."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{list(self.shape)} of {self.dtype}"


Specs = TensorSpec | tuple[TensorSpec, ...]


def parts(tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """The single tensors."""
    return tensors if isinstance(tensors, tuple) else (tensors,)


def are_tensors(found: object) -> bool:
    """Whether it is a tensor, or a tuple of nothing else."""
    return all(isinstance(part, torch.Tensor) for part in parts(found))


def each(change: Callable[[torch.Tensor], torch.Tensor], tensors: Tensors) -> Tensors:
    """The same structure with every tensor changed."""
    return tuple(map(change, tensors)) if isinstance(tensors, tuple) else change(tensors)


def specs_of(tensors: Tensors) -> Specs:
    """What the tensors are like."""
    if isinstance(tensors, tuple):
        return tuple(map(specs_of, tensors))
    return TensorSpec(tuple(tensors.shape), tensors.dtype)


def require_gradients(tensors: Tensors) -> None:
    """Make leaves of all that can have a gradient; masks and indices have none."""
    for tensor in parts(tensors):
        if tensor.is_floating_point():
            tensor.requires_grad_()

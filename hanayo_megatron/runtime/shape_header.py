"""Number, dtypes and shapes of the tensors of a message, as one tensor of fixed size."""

from __future__ import annotations

import torch

from hanayo_megatron.runtime.tensors import Specs, Tensors, TensorSpec, parts

MAX_TENSORS = 6
_MAX_DIMENSIONS = 6
_FIELDS = 2 + _MAX_DIMENSIONS  # of one tensor: dtype, number of dimensions, dimensions
_DTYPES = (  # that NCCL and gloo can send
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_SINGLE = -1


def empty(device: torch.device | int | str) -> torch.Tensor:
    """A buffer to receive a header into."""
    return torch.empty(1 + MAX_TENSORS * _FIELDS, dtype=torch.int64, device=device)


def write(tensors: Tensors, device: torch.device | int | str) -> torch.Tensor:
    """The header of a message. Raises ValueError for what does not fit."""
    single = parts(tensors)
    if len(single) > MAX_TENSORS:
        raise ValueError(
            f"a stage hands on {len(single)} tensors; at most {MAX_TENSORS} can be sent"
        )
    numbers = [len(single) if isinstance(tensors, tuple) else _SINGLE]
    for tensor in single:
        if tensor.dim() > _MAX_DIMENSIONS or tensor.dtype not in _DTYPES:
            raise ValueError(
                f"a stage hands on a tensor of {tensor.dtype} with {tensor.dim()} dimensions; at "
                f"most {_MAX_DIMENSIONS} dimensions of {', '.join(map(str, _DTYPES))} can be sent"
            )
        numbers += [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
        numbers += [0] * (_MAX_DIMENSIONS - tensor.dim())
    numbers += [0] * (1 + MAX_TENSORS * _FIELDS - len(numbers))
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def read(header: torch.Tensor) -> Specs:
    """What a header says of the tensors to come. The host waits for the header."""
    count, *fields = header.tolist()
    found = []
    for index in range(1 if count == _SINGLE else count):
        dtype, dimensions, *shape = fields[index * _FIELDS : (index + 1) * _FIELDS]
        found.append(TensorSpec(tuple(shape[:dimensions]), _DTYPES[dtype]))
    return found[0] if count == _SINGLE else tuple(found)

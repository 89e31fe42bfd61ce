"""Reads what Megatron saved, without Megatron."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def start_from(folder: Path) -> tuple[str, ...]:
    """Flags to start with a checkpoint's weights and nothing else of it."""
    return ("--load", str(folder), "--finetune", "--no-load-optim", "--no-load-rng")


def read_tensors(folder: Path, *, iteration: int) -> dict[str, torch.Tensor]:
    """All tensors of a torch_dist checkpoint: weights and optimizer state, by global name."""
    reader = FileSystemReader(folder / f"iter_{iteration:07d}")
    tensors = {
        name: torch.empty(stored.size, dtype=stored.properties.dtype)
        for name, stored in reader.read_metadata().state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }
    load(tensors, storage_reader=reader, no_dist=True)
    return tensors

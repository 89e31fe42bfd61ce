"""Checkpoints that plain Megatron made."""

from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_runs import Launcher, tiny_gpt


@pytest.fixture(scope="session")
def plain_checkpoint(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """A torch_dist checkpoint after one step of plain Megatron at PP=1, made once per model."""
    made: dict[tuple, Path] = {}

    def checkpoint(*model: str, layers: int) -> Path:
        key = (layers, model)
        if key not in made:
            folder = tmp_path_factory.mktemp("plain")
            save = ("--save", str(folder), "--save-interval", "1")
            launcher.run(tiny_gpt(*model, *save, layers=layers, iterations=1), ranks=1).check()
            made[key] = folder
        return made[key]

    return checkpoint

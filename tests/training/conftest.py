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

    def checkpoint(*model: str, layers: int, module: str = "hanayo_megatron.pretrain_gpt") -> Path:
        key = (layers, model, module)
        if key not in made:
            folder = tmp_path_factory.mktemp("plain")
            save = ("--save", str(folder), "--save-interval", "1")
            arguments = tiny_gpt(*model, *save, layers=layers, iterations=1)
            launcher.run(arguments, ranks=1, module=module).check()
            made[key] = folder
        return made[key]

    return checkpoint

"""Fixtures for tests that train Megatron in several processes (mark them `megatron`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_runs import Launcher, tiny_gpt
from megatron_runs.launcher import python_environment


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts trainings within a second; shared by all tests."""
    with Launcher() as launcher:
        yield launcher


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefix of a corpus of one million bytes."""
    prefix = tmp_path_factory.mktemp("corpus") / "text"
    command = [sys.executable, "-m", "hanayo_megatron.corpus", "--output", str(prefix)]
    subprocess.run(
        [*command, "--max-bytes", "1000000"], env=python_environment(), check=True, timeout=120
    )
    return prefix


@pytest.fixture(scope="session")
def checkpoint(launcher: Launcher, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A torch_dist checkpoint of `tiny_gpt()` after two steps of one process."""
    return _save(tiny_gpt(corpus=corpus, iterations=2), launcher, tmp_path_factory)


@pytest.fixture(scope="session")
def untied_checkpoint(
    launcher: Launcher, corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """As `checkpoint`, with `--untie-embeddings-and-output-weights`."""
    untied = tiny_gpt("--untie-embeddings-and-output-weights", corpus=corpus, iterations=2)
    return _save(untied, launcher, tmp_path_factory)


def _save(arguments: list[str], launcher: Launcher, paths: pytest.TempPathFactory) -> Path:
    folder = paths.mktemp("checkpoint")
    launcher.run([*arguments, "--save", str(folder), "--save-interval", "1000"], ranks=1).check()
    return folder

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
    """A torch_dist checkpoint of `tiny_gpt(layers=8)` after two steps without any parallelism."""
    folder = tmp_path_factory.mktemp("checkpoint")
    save = ("--save", str(folder), "--save-interval", "1000")
    launcher.run(tiny_gpt(*save, corpus=corpus, iterations=2), ranks=1).check()
    return folder

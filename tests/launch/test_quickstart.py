"""launch/quickstart.sh from an installed environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.megatron


def quickstart(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [ROOT / "launch" / "quickstart.sh", *arguments],
        env={**os.environ, "HANAYO_VENV": sys.prefix, "HANAYO_QUICKSTART": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_it_trains_waves_and_the_loss_falls(tmp_path):
    done = quickstart(tmp_path, "--train-iters", "15")
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, verdict = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"iteration {iteration} of 15" for iteration in (1, 5, 10, 15)
    ]
    first, last = re.fullmatch(r"The loss fell from (\S+) to (\S+)\.", verdict).groups()
    assert float(first) > float(last) + 0.5
    assert (
        "pipeline schedule hanayo: 16 stages on 4 ranks" in (tmp_path / "training.log").read_text()
    )


@pytest.mark.parametrize(
    ("words", "errors"),
    [
        (
            ("--num-waves", "3"),
            ["hanayo_megatron: error on rank", "--num-layers 16 does not fill the 24 stages"],
        ),
        (("--no-such-flag",), [".py: error: unrecognized arguments: --no-such-flag"]),
    ],
)
def test_a_training_that_fails_shows_its_error(tmp_path, words, errors):
    done = quickstart(tmp_path, *words)
    assert done.returncode == 1
    for error in ("error: the training failed", *errors):
        assert error in done.stderr

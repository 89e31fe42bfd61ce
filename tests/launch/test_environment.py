"""launch/environment.sh: which Python, which environment, and clear texts where there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "launch" / "environment.sh"


class Machine:
    """An empty machine: PATH holds bash, dirname and what a test adds."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bin"
        self.pyenv = folder / "pyenv"
        self.path.mkdir()
        for tool in ("bash", "dirname"):
            (self.path / tool).symlink_to(shutil.which(tool))

    def run(self, command: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.path / "bash", "-c", f"set -euo pipefail; source {SCRIPT}; {command}"],
            env={
                "PATH": str(self.path),
                "HOME": str(self.path.parent),
                "PYENV_ROOT": str(self.pyenv),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
    path.chmod(0o755)
    return path


def this_python(path: Path) -> Path:
    return executable(path, f'exec {sys.executable} "$@"')


def test_the_first_python_that_is_new_enough_is_taken(machine):
    executable(machine.path / "python3.12", "exit 127")  # pyenv's shim of a version not chosen
    executable(machine.path / "python3.13", "exit 1")  # too old, as it says itself
    found = this_python(machine.path / "python3")
    done = machine.run("find_python")
    assert (done.returncode, done.stdout.strip()) == (0, str(found))


def test_pyenv_is_searched_after_path(machine):
    executable(machine.path / "python3", "exit 1")
    executable(machine.pyenv / "versions" / "3.11.7" / "bin" / "python", "exit 1")
    found = this_python(machine.pyenv / "versions" / "3.12.1" / "bin" / "python")
    done = machine.run("find_python")
    assert (done.returncode, done.stdout.strip()) == (0, str(found))


def test_without_python_the_text_says_what_to_do(machine):
    done = machine.run("prepare_environment", HANAYO_VENV=str(machine.path / "none"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: hanayo_megatron needs Python 3.12 or newer")
    assert str(machine.pyenv) in done.stderr
    assert not (machine.path / "none").exists()


def test_a_chosen_python_that_is_too_old_is_refused(machine):
    old = executable(machine.path / "old", "exit 1")
    this_python(machine.path / "python3")
    done = machine.run("find_python", HANAYO_PYTHON=str(old))
    assert done.returncode == 1
    assert done.stderr == f"error: HANAYO_PYTHON={old} is no Python from 3.12 on.\n"


def test_an_environment_that_has_the_packages_is_used_as_it_is(machine, tmp_path):
    calls = tmp_path / "calls"
    python = executable(
        tmp_path / "venv" / "bin" / "python", f'echo "$*" >>{calls}; exec {sys.executable} "$@"'
    )
    done = machine.run(
        'prepare_environment test; echo "$PYTHON $PYTHONPATH"', HANAYO_VENV=str(tmp_path / "venv")
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{python} {ROOT}"
    assert "pip" not in calls.read_text()


def test_a_package_that_is_missing_is_installed_or_named(machine, tmp_path):
    empty = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True, timeout=60)
    done = machine.run("prepare_environment test", HANAYO_VENV=str(empty))
    assert done.returncode == 1
    assert f"Installing into {empty}, which lacks: torch megatron.core" in done.stderr
    assert "ruff" in done.stderr
    assert "error: pip could not install the packages" in done.stderr


def test_an_environment_whose_python_does_not_run_is_named(machine, tmp_path):
    executable(tmp_path / "venv" / "bin" / "python", "exit 3")
    done = machine.run("prepare_environment", HANAYO_VENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    assert f"Remove {tmp_path / 'venv'}" in done.stderr

"""The two ways in: `-m hanayo_megatron.run SCRIPT` and `-m hanayo_megatron.pretrain_gpt`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_runs import launch_fresh, tiny_gpt
from megatron_runs.launcher import python_environment

SCRIPT = """
import json, sys
import neighbour
from hanayo_megatron import cpu
print(json.dumps([__name__, sys.argv, neighbour.VALUE, cpu.is_active(), sys.path[0]]))
"""


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "hanayo_megatron.run", *arguments],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_script_runs_as_main_on_prepared_cpus(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("VALUE = 7\n")
    done = run(str(script), "--cpu", "--lr", "1")
    assert done.returncode == 0, done.stderr
    name, argv, value, on_cpu, first_path = json.loads(done.stdout.splitlines()[-1])
    assert (name, value, on_cpu) == ("__main__", 7, True)
    assert argv[0] == str(script)
    assert argv[-2:] == ["--lr", "1"]
    assert "--cpu" not in argv
    assert first_path == str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((), "no script was named"), (("nowhere.py", "--lr", "1"), "there is no file nowhere.py")],
)
def test_without_a_script_one_line_says_what_to_do(arguments, text):
    done = run(*arguments)
    assert done.returncode == 1
    assert text in done.stderr
    assert "torchrun ... -m hanayo_megatron.run path/to/pretrain_gpt.py" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.megatron
def test_what_the_own_entry_cannot_do_is_refused(launcher):
    refused = launcher.run(tiny_gpt("--sft"), ranks=2)
    assert refused.exit_codes == (1, 1)
    for stderr in refused.stderr:
        assert "has no --sft" in stderr.splitlines()[-1]
        assert "hanayo_megatron.run pretrain_gpt.py" in stderr.splitlines()[-1]


@pytest.mark.megatron
def test_fresh_processes_train_as_forked_ones_do(launcher, corpus):
    """What `Launcher` saves by forking changes no number."""
    arguments = tiny_gpt(
        "--pipeline-model-parallel-size", "2", corpus=corpus, layers=4, iterations=3
    )
    fresh = launch_fresh(arguments, ranks=2).check()
    forked = launcher.run(arguments, ranks=2).check()
    assert len(fresh.losses) == 3
    assert fresh.losses == forked.losses
    assert fresh.grad_norms == forked.grad_norms


@pytest.mark.megatron
def test_ranks_that_hang_are_ended_and_tell_where(launcher):
    endless = launcher.run(tiny_gpt(iterations=1_000_000), ranks=2, timeout=4)
    assert endless.timed_out
    assert not endless.succeeded
    assert all(code < 0 for code in endless.exit_codes)
    assert any("most recent call first" in stderr for stderr in endless.stderr)
    assert launcher.run(tiny_gpt(layers=2, iterations=1), ranks=1).check().losses


def test_the_launcher_leaves_no_process_behind(launcher, tmp_path):
    """Not even the helper that Megatron starts to save a checkpoint."""
    before = _processes_of_ended_runs()
    save = ("--save", str(tmp_path), "--save-interval", "1")
    launcher.run(tiny_gpt(*save, layers=2, iterations=1), ranks=1).check()
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "1"
    assert _processes_of_ended_runs() <= before


def _processes_of_ended_runs() -> set[Path]:
    """Those whose working folder, a run's own, is gone."""
    links = Path("/proc").glob("[0-9]*/cwd")
    return {link.parent for link in links if _working_folder(link).endswith("(deleted)")}


def _working_folder(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # ended meanwhile, or not ours
        return ""

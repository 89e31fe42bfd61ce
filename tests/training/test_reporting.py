"""Megatron's timers, TensorBoard, one-line log and reports are what they are without us."""

import re

import pytest
from checkpoints import start_from

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

REPORTS = (
    *(
        "--timing-log-level",
        "1",
        "--log-throughput",
        "--log-params-norm",
        "--log-num-zeros-in-grad",
    ),
    *("--tensorboard-dir", "board", "--tensorboard-log-interval", "1"),
    *("--log-timers-to-tensorboard", "--log-validation-ppl-to-tensorboard"),
    *("--eval-interval", "2", "--eval-iters", "1"),
)
HANAYO = ("--pipeline-schedule", "hanayo", "--num-waves", "2")


@pytest.fixture(scope="module")
def runs(launcher, plain_checkpoint):
    """Plain Megatron's run and ours, each with every report."""

    def run(*schedule):
        arguments = tiny_gpt(
            *("--pipeline-model-parallel-size", "2", "--clip-grad", "0"),
            *start_from(plain_checkpoint(layers=8)),
            *REPORTS,
            *schedule,
            iterations=3,
        )
        return launcher.run(arguments, ranks=2, module="training.written_scalars").check()

    return run(), run(*HANAYO)


def timers(run):
    """Names in Megatron's tables of timers, which the last rank prints."""
    return set(re.findall(r"^ +([a-z/-]+) \.+: \(", run.stdout[-1] + run.stderr[-1], re.M))


def scalars(run, *, timed):
    """What went to TensorBoard: values where they are no times.

    Norms are sums over ranks, whose last bits depend on who holds which layers.
    """
    found = {}
    for name, step, value in re.findall(r"^@scalar (\S+) (\d+) (\S+)$", run.stdout[-1], re.M):
        is_time = bool(re.search("time|throughput|memory|TFLOP", name)) or name in timers(run)
        if is_time == timed:
            found[name, step] = None if timed else pytest.approx(float(value), rel=1e-6)
    return found


def test_the_same_timers(runs):
    plain, ours = runs
    assert "forward-backward" in timers(plain)
    assert timers(ours) == timers(plain)


def test_the_same_line_of_each_step(runs):
    plain, ours = runs
    assert len(ours.iterations) == 3
    for mine, theirs in zip(ours.iterations, plain.iterations, strict=True):
        assert mine.keys() == theirs.keys()
        assert any("throughput" in name for name in mine)
        for name, value in theirs.items():
            if "time" not in name and "throughput" not in name:
                assert mine[name] == value, name


def test_the_same_scalars_on_tensorboard(runs):
    plain, ours = runs
    written = scalars(plain, timed=False)
    assert {"lm_loss", "grad-norm", "params-norm"} <= {name for name, _ in written}
    assert scalars(ours, timed=False) == written
    assert scalars(ours, timed=True) == scalars(plain, timed=True)
    assert "@scalar" not in ours.stdout[0]

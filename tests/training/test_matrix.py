"""What Megatron does, it does under every schedule: one training each, held against plain 1F1B."""

from functools import cache

import pytest
import torch
from checkpoints import read_tensors, start_from
from settings import SETTINGS

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

SCHEDULES = {
    "hanayo-1": ("--pipeline-schedule", "hanayo", "--num-waves", "1"),
    "hanayo-2": ("--pipeline-schedule", "hanayo", "--num-waves", "2"),
    "interleaved": ("--pipeline-schedule", "interleaved"),
}
_TIMES = ("elapsed time per iteration (ms)",)


@pytest.fixture(scope="module")
def trained(launcher, plain_checkpoint, tmp_path_factory):
    """Trains a setting: the lines of its log and its weights at the end."""

    def train(setting, *schedule):
        folder = tmp_path_factory.mktemp("run")
        arguments = tiny_gpt(
            *("--pipeline-model-parallel-size", str(setting.pp), "--clip-grad", "0.0"),
            *start_from(
                plain_checkpoint(*setting.model, layers=setting.layers, module=setting.model_module)
            ),
            *("--save", str(folder), "--save-interval", "1000", "--no-save-optim"),
            *("--eval-iters", "1"),
            *setting.model,
            *setting.flags,
            *schedule,
            layers=setting.layers,
            microbatches=setting.microbatches,
            iterations=setting.iterations,
        )
        run = launcher.run(
            arguments,
            ranks=setting.ranks,
            module=setting.module or setting.model_module,
            environment=dict(setting.environment),
        ).check()
        assert len(run.iterations) == setting.iterations - setting.skipped
        return run, read_tensors(folder, iteration=setting.iterations)

    return train


@pytest.fixture(scope="module")
def plain(trained):
    """The same under Megatron's own schedule, once for all that share it."""
    return cache(trained)


def lines(run):
    """What Megatron logged of every step and evaluation, without times."""
    return [
        {name: value for name, value in line.items() if name not in _TIMES}
        for line in [*run.iterations, *run.validations]
    ]


def cases():
    """Every setting under every schedule; in CI those of four ranks not under a single wave."""
    for name, setting in SETTINGS.items():
        for schedule in SCHEDULES:
            slow = schedule == "hanayo-1" and setting.ranks > 2
            marks = pytest.mark.slow if slow else ()
            yield pytest.param(name, schedule, id=f"{name}-{schedule}", marks=marks)


@pytest.mark.parametrize(("name", "schedule"), cases())
def test_equals_plain_megatron(trained, plain, name, schedule):
    setting = SETTINGS[name]
    theirs, their_weights = plain(setting.plain)
    ours, our_weights = trained(setting, *SCHEDULES[schedule])
    assert lines(ours) == lines(theirs)
    for field in setting.shows:
        assert any(line.get(field) for line in ours.iterations), field
    assert our_weights.keys() == their_weights.keys()
    assert not [n for n, weight in their_weights.items() if not torch.equal(our_weights[n], weight)]

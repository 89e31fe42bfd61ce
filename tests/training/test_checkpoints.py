"""Checkpoints are Megatron's own: saved under one schedule, continued under another."""

import pytest
import torch
from checkpoints import read_tensors, start_from
from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

PLAIN_1 = (1, ())
PLAIN_4 = (4, ())
PLAIN_2 = (2, ())
WAVES_2 = (2, ("--pipeline-schedule", "hanayo", "--num-waves", "2"))
WAVES_4 = (4, ("--pipeline-schedule", "hanayo", "--num-waves", "1"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(WAVES_2, PLAIN_4, id="hanayo-to-plain"),
        pytest.param(PLAIN_4, WAVES_2, id="plain-to-hanayo"),
        pytest.param(WAVES_4, PLAIN_1, id="hanayo-to-no-pipeline", marks=pytest.mark.slow),
        pytest.param(WAVES_2, WAVES_4, id="between-waves", marks=pytest.mark.slow),
    ],
)
def test_a_run_continues_under_another_schedule(
    launcher, plain_checkpoint, tmp_path, before, after
):
    """3 steps + 3 steps elsewhere, with Adam's state, equal 6 steps of plain Megatron."""

    def train(pp, schedule, iterations, *flags, folder):
        arguments = tiny_gpt(
            *("--pipeline-model-parallel-size", str(pp), "--clip-grad", "0"),
            *("--save", str(folder), "--save-interval", "3", "--exit-interval", str(iterations)),
            *schedule,
            *flags,
            layers=16,
            iterations=6,
        )
        return launcher.run(arguments, ranks=pp).check()

    start = start_from(plain_checkpoint(layers=16))
    straight, moved = tmp_path / "straight", tmp_path / "moved"
    expected = train(*PLAIN_2, 6, *start, folder=straight)
    first = train(*before, 3, *start, folder=moved)
    second = train(*after, 6, "--load", str(moved), folder=moved)

    assert first.losses + second.losses == expected.losses
    assert first.grad_norms + second.grad_norms == expected.grad_norms
    ours, theirs = read_tensors(moved, iteration=6), read_tensors(straight, iteration=6)
    assert ours.keys() == theirs.keys()
    assert any("exp_avg_sq" in name for name in theirs)
    assert not [n for n, tensor in theirs.items() if not torch.equal(ours[n], tensor)]


def test_a_missing_checkpoint_ends_every_rank(launcher, tmp_path):
    arguments = tiny_gpt(
        *("--pipeline-model-parallel-size", "2", "--pipeline-schedule", "hanayo"),
        *("--load", str(tmp_path / "nothing"), "--exit-on-missing-checkpoint"),
    )
    run = launcher.run(arguments, ranks=2, timeout=60)
    assert not run.timed_out
    assert all(code != 0 for code in run.exit_codes)

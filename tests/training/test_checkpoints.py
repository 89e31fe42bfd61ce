"""Checkpoints are Megatron's own: saved under one schedule, continued under another."""

import pytest
import torch
from checkpoints import read_tensors, start_from

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

UNTIED = ("--untie-embeddings-and-output-weights",)
PLAIN_1 = (1, ())
PLAIN_4 = (4, ())
PLAIN_2 = (2, ())
WAVES_2 = (2, ("--pipeline-schedule", "hanayo", "--num-waves", "2"))
WAVES_4 = (4, ("--pipeline-schedule", "hanayo", "--num-waves", "1"))


@pytest.mark.parametrize(
    ("before", "after", "model"),
    [
        pytest.param(WAVES_2, PLAIN_4, (), id="hanayo-to-plain"),
        pytest.param(PLAIN_4, WAVES_2, (), id="plain-to-hanayo"),
        # At PP=1 tied weights are one tensor, whose gradient is summed in another order.
        pytest.param(WAVES_4, PLAIN_1, UNTIED, id="hanayo-to-pp1", marks=pytest.mark.slow),
        pytest.param(WAVES_2, WAVES_4, (), id="between-waves", marks=pytest.mark.slow),
    ],
)
def test_a_run_continues_under_another_schedule(
    launcher, plain_checkpoint, tmp_path, before, after, model
):
    """3 steps + 3 steps elsewhere, with Adam's state, equal 6 steps of plain Megatron."""

    def train(pp, schedule, iterations, *flags, folder):
        arguments = tiny_gpt(
            *("--pipeline-model-parallel-size", str(pp), "--clip-grad", "0"),
            *("--save", str(folder), "--save-interval", "3", "--exit-interval", str(iterations)),
            *model,
            *schedule,
            *flags,
            layers=16,
            iterations=6,
        )
        return launcher.run(arguments, ranks=pp).check()

    start = start_from(plain_checkpoint(*model, layers=16))
    straight, moved, resumed = (tmp_path / name for name in ("straight", "moved", "resumed"))
    expected = train(*PLAIN_2, 6, *start, folder=straight)
    # Megatron's loss average of the second step after a restart includes the first's.
    restarted = train(*PLAIN_2, 6, "--load", str(straight), "--ckpt-step", "3", folder=resumed)
    first = train(*before, 3, *start, folder=moved)
    second = train(*after, 6, "--load", str(moved), folder=moved)

    assert first.losses == expected.losses[:3]
    assert second.losses == restarted.losses
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
    assert run.exit_codes == (1, 1)
    assert all("there is no checkpoint" in text for text in run.stderr)

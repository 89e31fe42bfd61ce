"""Training under hanayo equals training under Megatron's own 1F1B, bit by bit.

Without gradient clipping, that is: the clip coefficient comes from a sum over ranks in which the
order depends on who holds which layers, so with clipping active plain Megatron at PP=1, 2 and 4
differ from each other in the last printed digit of some losses too.
"""

from functools import cache

import pytest
import torch
from checkpoints import read_tensors, start_from

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

STEPS = 10
UNTIED = ("--untie-embeddings-and-output-weights",)

UNCLIPPED = ("--clip-grad", "0.0")


def cases():
    """Every placement with every microbatch count; untied ones for one count only, in CI."""
    found = []
    placements = [(2, 1, 16), (2, 2, 16), (2, 3, 12), (4, 1, 16), (4, 2, 16)]
    for pp, waves, layers in placements:
        for microbatches in (1, 4, 5, 8):
            for model in ((), UNTIED):
                slow = model == UNTIED and microbatches != 5
                name = f"pp{pp}-w{waves}-m{microbatches}-{'untied' if model else 'tied'}"
                marks = pytest.mark.slow if slow else ()
                found.append(
                    pytest.param(pp, waves, layers, microbatches, model, id=name, marks=marks)
                )
    return found


@pytest.fixture(scope="module")
def plain_run(launcher, plain_checkpoint, tmp_path_factory):
    """Megatron's own 1F1B from the shared checkpoint, run once per configuration."""

    @cache
    def run(pp, layers, microbatches, flags):
        checkpoint = plain_checkpoint(*(f for f in flags if f in UNTIED), layers=layers)
        folder = tmp_path_factory.mktemp("plain-run")
        return train(
            launcher, checkpoint, folder, *flags, pp=pp, layers=layers, microbatches=microbatches
        )

    return run


def train(launcher, checkpoint, folder, *flags, pp, layers, microbatches):
    """Losses and norms of every step, validation losses, and the weights at the end."""
    arguments = tiny_gpt(
        *("--pipeline-model-parallel-size", str(pp)),
        *start_from(checkpoint),
        *("--save", str(folder), "--save-interval", str(STEPS), "--eval-iters", "2"),
        *flags,
        layers=layers,
        microbatches=microbatches,
        iterations=STEPS,
    )
    run = launcher.run(arguments, ranks=pp).check()
    assert len(run.losses) == STEPS
    assert len(run.validations) == 2
    return run, read_tensors(folder, iteration=STEPS)


@pytest.mark.parametrize(("pp", "waves", "layers", "microbatches", "model"), cases())
def test_hanayo_equals_1f1b(
    launcher, plain_checkpoint, plain_run, tmp_path, pp, waves, layers, microbatches, model
):
    plain, plain_tensors = plain_run(pp, layers, microbatches, (*UNCLIPPED, *model))
    ours, our_tensors = train(
        launcher,
        plain_checkpoint(*model, layers=layers),
        tmp_path,
        *UNCLIPPED,
        *model,
        *("--pipeline-schedule", "hanayo", "--num-waves", str(waves)),
        pp=pp,
        layers=layers,
        microbatches=microbatches,
    )
    assert ours.losses == plain.losses
    assert ours.grad_norms == plain.grad_norms
    assert ours.validations == plain.validations
    assert our_tensors.keys() == plain_tensors.keys()
    different = [n for n, t in plain_tensors.items() if not torch.equal(our_tensors[n], t)]
    assert not different


def test_hanayo_equals_1f1b_with_clipping(launcher, plain_checkpoint, plain_run, tmp_path):
    plain, plain_tensors = plain_run(4, 16, 8, ("--clip-grad", "0.5"))
    ours, our_tensors = train(
        launcher,
        plain_checkpoint(layers=16),
        tmp_path,
        *("--clip-grad", "0.5", "--pipeline-schedule", "hanayo", "--num-waves", "2"),
        pp=4,
        layers=16,
        microbatches=8,
    )
    assert min(plain.grad_norms) > 0.5, "clipping was never active"
    assert ours.losses == pytest.approx(plain.losses, rel=1e-6)
    assert ours.grad_norms == pytest.approx(plain.grad_norms, abs=1.5e-3)
    for name, tensor in plain_tensors.items():
        torch.testing.assert_close(
            our_tensors[name], tensor, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )

"""Stages that hand on another shape than Megatron expects, or several tensors.

Megatron's own 1F1B takes one tensor of a shape that adjust_tensor_shapes_fn tells; of several it
can send none (a list is no tensor to it) and runs the backward of the first one only. So one model
is held against it that can do both: the same states joined into one tensor, and as a list.
"""

from functools import cache

import pytest
import torch
from checkpoints import read_tensors, start_from

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

MODULE = "training.two_widths"
UNTIED = ("--untie-embeddings-and-output-weights",)
STEPS = 4
ONE_WAVE = ("--pipeline-schedule", "hanayo")
TWO_WAVES = (*ONE_WAVE, "--num-waves", "2")


@pytest.fixture(scope="module")
def train(launcher, tmp_path_factory):
    """Trains with states handed on `joined` or as `several`: the run and its weights at the end."""
    start = tmp_path_factory.mktemp("start")
    saving = tiny_gpt(*UNTIED, "--save", str(start), "--save-interval", "1", iterations=1)
    launcher.run(saving, ranks=1, module=MODULE, environment={"HANDS_ON": "joined"}).check()

    def run(how, *flags, pp=2):
        folder = tmp_path_factory.mktemp("run")
        arguments = tiny_gpt(
            *("--pipeline-model-parallel-size", str(pp), "--clip-grad", "0", "--eval-iters", "1"),
            *("--save", str(folder), "--save-interval", "1000", "--no-save-optim"),
            *start_from(start),
            *UNTIED,
            *flags,
            microbatches=5,
            iterations=STEPS,
        )
        run = launcher.run(
            arguments, ranks=pp, module=MODULE, environment={"HANDS_ON": how}, timeout=60
        ).check()
        assert len(run.losses) == STEPS
        return run, read_tensors(folder, iteration=STEPS)

    return run


@pytest.fixture(scope="module")
def plain(train):
    return cache(lambda *flags: train("joined", *flags))


@pytest.mark.parametrize("how", ["joined", "several"])
@pytest.mark.parametrize(
    ("pp", "schedule", "flags"),
    [
        pytest.param(2, ("--pipeline-schedule", "1f1b"), (), id="1f1b"),
        pytest.param(2, ONE_WAVE, (), id="hanayo-1"),
        pytest.param(2, TWO_WAVES, (), id="hanayo-2"),
        pytest.param(4, ONE_WAVE, (), id="hanayo-1-pp4", marks=pytest.mark.slow),
        pytest.param(2, (*ONE_WAVE, "--pipeline-debug"), (), id="checked", marks=pytest.mark.slow),
        pytest.param(2, TWO_WAVES, ("--fp16", "--initial-loss-scale", "4096"), id="fp16"),
    ],
)
def test_equals_plain_megatron(train, plain, how, pp, schedule, flags):
    theirs, their_weights = plain(*flags)
    ours, our_weights = train(how, *schedule, *flags, pp=pp)
    assert ours.losses == theirs.losses
    assert ours.grad_norms == theirs.grad_norms
    assert ours.validations == theirs.validations
    assert not [n for n, weight in their_weights.items() if not torch.equal(our_weights[n], weight)]


@pytest.mark.parametrize("how", ["joined", "several"])
def test_both_copies_of_chimera_hand_them_on(train, plain, how):
    theirs, _ = plain()
    ours, _ = train(how, "--pipeline-schedule", "chimera")
    assert ours.losses == pytest.approx(theirs.losses, rel=0, abs=1.01e-6)
    assert ours.grad_norms == pytest.approx(theirs.grad_norms, rel=0, abs=1.01e-3)


def test_a_rank_that_is_not_told_of_other_shapes_ends_all(launcher):
    arguments = tiny_gpt(
        *("--pipeline-model-parallel-size", "2", "--pipeline-schedule", "hanayo"), microbatches=2
    )
    environment = {"HANDS_ON": "joined", "UNTOLD_RANK": "1"}
    run = launcher.run(
        arguments, ranks=2, module=MODULE, environment=environment, timeout=60, grace=20
    )
    assert run.exit_codes == (1, 1), run.report()
    for text in run.stderr:
        assert "have other shapes than configured: no on ranks 1; yes on ranks 0. Give" in text

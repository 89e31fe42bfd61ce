"""Sequence lengths that change from microbatch to microbatch, with Megatron's own flag for it."""

import pytest
from checkpoints import start_from

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron


@pytest.mark.parametrize("flags", [(), ("--pipeline-debug",)])
@pytest.mark.parametrize(("pp", "schedule"), [(2, "hanayo"), (4, "interleaved")])
def test_losses_equal_plain_megatrons(launcher, plain_checkpoint, pp, schedule, flags):
    arguments = tiny_gpt(
        *("--pipeline-model-parallel-size", str(pp), "--clip-grad", "0"),
        *("--moe-token-dispatcher-type", "alltoall"),  # Megatron insists, also without experts
        *start_from(plain_checkpoint(layers=8)),
        microbatches=8,
        iterations=4,
    )
    module = "training.varied_lengths"
    plain = launcher.run(arguments, ranks=pp, module=module).check()
    ours = launcher.run(
        [*arguments, "--pipeline-schedule", schedule, *flags], ranks=pp, module=module
    ).check()
    same_length = launcher.run(arguments, ranks=pp).check()
    assert len(ours.losses) == 4
    assert ours.losses == plain.losses
    assert ours.grad_norms == plain.grad_norms
    assert ours.losses != same_length.losses

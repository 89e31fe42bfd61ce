"""A user's own pretrain_gpt.py, unmodified, from a Megatron-LM checkout of core_v0.19.0.

Set MEGATRON_LM to the checkout. Without it these tests are skipped: no wheel has the script.
"""

import os
from pathlib import Path

import pytest
from checkpoints import start_from

from megatron_runs import launch_fresh, tiny_gpt

CHECKOUT = os.environ.get("MEGATRON_LM", "")

pytestmark = [
    pytest.mark.megatron,
    pytest.mark.skipif(not CHECKOUT, reason="MEGATRON_LM names no Megatron-LM checkout"),
]


@pytest.mark.parametrize("model", [(), ("--untie-embeddings-and-output-weights",)])
def test_losses_of_an_unmodified_script(launcher, plain_checkpoint, model):
    arguments = tiny_gpt(
        *("--pipeline-model-parallel-size", "2", "--clip-grad", "0", "--eval-iters", "2"),
        *model,
        *start_from(plain_checkpoint(*model, layers=8)),
    )
    plain = launcher.run(arguments, ranks=2).check()
    ours = launch_fresh(
        [
            str(Path(CHECKOUT) / "pretrain_gpt.py"),
            *arguments,
            *("--pipeline-schedule", "hanayo", "--num-waves", "2"),
        ],
        ranks=2,
        module="hanayo_megatron.run",
        timeout=240,
    ).check()
    assert len(ours.losses) == 10
    assert ours.losses == plain.losses
    assert ours.grad_norms == plain.grad_norms
    assert ours.validations == plain.validations

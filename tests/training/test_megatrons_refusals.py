"""What Megatron's layers for CPUs cannot do ends every rank with Megatron's own reason."""

import pytest

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (
            ("--context-parallel-size", "2"),
            "Context parallelism is only supported by TEDotProductAttention",
        ),
        (
            ("--tensor-model-parallel-size", "2", "--sequence-parallel"),
            "sequence parallel not supported by torch LayerNorm",
        ),
    ],
)
def test_every_rank_ends_with_the_reason(launcher, flags, reason):
    arguments = tiny_gpt(
        *("--pipeline-model-parallel-size", "2", "--pipeline-schedule", "hanayo"), *flags
    )
    run = launcher.run(arguments, ranks=4, timeout=90, grace=40)
    assert not run.timed_out
    assert all(run.exit_codes)
    assert any(reason in text for text in run.stderr), run.report()

"""Bad input ends every rank at once, with one clear line and an exit code that is not 0."""

import pytest

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

CASES = [
    (2, ("--pipeline-schedule", "hanyo"), "unknown pipeline schedule 'hanyo'"),
    (2, ("--pipeline-schedule", "hanayo", "--num-waves", "3"), "--num-layers 8"),
    (1, ("--pipeline-schedule", "hanayo"), "at least 2, got 1"),
    (
        2,
        ("--pipeline-schedule", "hanayo", "--num-virtual-stages-per-pipeline-rank", "2"),
        "--num-virtual-stages-per-pipeline-rank 2 conflicts",
    ),
    (3, ("--pipeline-schedule", "chimera"), "chimera needs an even number of ranks"),
    (
        2,
        ("--pipeline-schedule", "chimera", "--num-virtual-stages-per-pipeline-rank", "2"),
        "--num-virtual-stages-per-pipeline-rank 2 conflicts with --pipeline-schedule chimera",
    ),
]


@pytest.mark.parametrize(("ranks", "flags", "words"), CASES)
def test_one_line_on_every_rank(launcher, ranks, flags, words):
    arguments = tiny_gpt("--pipeline-model-parallel-size", str(ranks), *flags)
    run = launcher.run(arguments, ranks=ranks, timeout=60)
    assert not run.timed_out
    assert run.exit_codes == (1,) * ranks
    for text in run.stderr:
        assert words in text
        assert "Traceback" not in text


def test_replicas_with_other_microbatch_counts_stop_with_both_numbers(launcher):
    arguments = tiny_gpt(
        *("--pipeline-model-parallel-size", "2", "--pipeline-schedule", "hanayo"),
        microbatches=8,
    )
    run = launcher.run(arguments, ranks=4, module="training.unequal_replicas", timeout=60, grace=20)
    assert not run.timed_out
    assert run.exit_codes == (1,) * 4, run.report()
    for text in run.stderr:
        assert "ranks disagree" in text
        assert "4 on ranks 0, 2" in text
        assert "5 on ranks 1, 3" in text

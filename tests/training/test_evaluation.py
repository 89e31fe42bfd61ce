"""Evaluation before, between and after training steps, with another number of microbatches."""

import ast
import re

import pytest
from checkpoints import start_from

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

HANAYO = ("--pipeline-schedule", "hanayo", "--num-waves", "2")
INTERLEAVED = ("--pipeline-schedule", "interleaved")
EVALUATION = ("--eval-global-batch-size", "6", "--eval-micro-batch-size", "2", "--eval-iters", "9")


@pytest.fixture(scope="module")
def evaluated(launcher, plain_checkpoint):
    """Runs evaluations (E) and training steps (T) in an order."""

    def run(order, *flags):
        arguments = tiny_gpt(
            *("--pipeline-model-parallel-size", "2", "--clip-grad", "0.0"),
            *start_from(plain_checkpoint(layers=8)),
            *EVALUATION,
            *flags,
            iterations=order.count("T"),
        )
        return launcher.run(
            arguments, ranks=2, module="training.evaluations", environment={"ORDER": order}
        ).check()

    return run


def said(run, what, rank):
    found = re.findall(rf"^@{what} (.*)$", run.stdout[rank], re.M)
    return [ast.literal_eval(text) for text in found]


@pytest.mark.parametrize(
    ("order", "schedule"),
    [
        ("ETE", HANAYO),
        ("EETT", HANAYO),
        pytest.param("TET", HANAYO, marks=pytest.mark.slow),
        ("EETTE", INTERLEAVED),
    ],
)
def test_orders_of_evaluation_and_training(evaluated, order, schedule):
    plain, ours = evaluated(order), evaluated(order, *schedule)
    assert ours.losses == plain.losses
    assert ours.grad_norms == plain.grad_norms
    evaluations = order.count("E")
    for what in ("evaluated", "collected"):
        found = said(ours, what, 1)
        assert len(found) == evaluations
        assert found == said(plain, what, 1)
        assert all(found)
    assert len(said(ours, "collected", 1)[0]) == 2
    assert said(ours, "collected", 0) == [[]] * evaluations
    for rank in (0, 1):
        assert len(said(ours, "modes", rank)) == evaluations
        assert all(all(modes) for modes in said(ours, "modes", rank))
        assert said(ours, "changed", rank) == said(plain, "changed", rank)


def test_dropout_is_off_in_evaluation_and_on_again_in_training(evaluated):
    dropout = ("--attention-dropout", "0.2", "--hidden-dropout", "0.2")
    without, with_dropout = evaluated("ET", *HANAYO), evaluated("ET", *HANAYO, *dropout)
    assert said(with_dropout, "evaluated", 1) == said(without, "evaluated", 1)
    assert with_dropout.losses[0] != without.losses[0]


def test_data_that_end_stop_every_rank(launcher):
    """Rank 0 reads the data under waves; the others must not wait for it for ever."""
    arguments = tiny_gpt("--pipeline-model-parallel-size", "2", *HANAYO)
    run = launcher.run(arguments, ranks=2, module="training.short_data", timeout=60, grace=30)
    assert not run.timed_out
    assert run.exit_codes == (1, 1), run.report()
    assert len(run.losses) == 1
    assert "ended before microbatch 2 of this step" in run.stderr[0]
    assert "rank 0 failed: the data iterator of chunk 0 ended" in run.stderr[1], run.report()
    assert "Traceback" not in run.stderr[0]

"""Plain Megatron on CPU processes: the same training however it is split."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from megatron_runs import Launcher, Run, tiny_gpt

pytestmark = pytest.mark.megatron

LLAMA = (
    *("--position-embedding-type", "rope", "--group-query-attention", "--num-query-groups", "2"),
    *("--swiglu", "--normalization", "RMSNorm", "--disable-bias-linear"),
    "--untie-embeddings-and-output-weights",
)
MOE = (
    *("--num-experts", "4", "--moe-router-topk", "2", "--moe-aux-loss-coeff", "0.01"),
    "--disable-bias-linear",
)
RECOMPUTE = (
    *("--recompute-granularity", "full", "--recompute-method", "uniform"),
    *("--recompute-num-layers", "1"),
)


def pipeline(ranks: int, chunks: int = 1) -> tuple[str, ...]:
    size = ("--pipeline-model-parallel-size", str(ranks))
    return size if chunks == 1 else (*size, "--num-virtual-stages-per-pipeline-rank", str(chunks))


def continued(checkpoint: Path, corpus: Path, *more: str) -> list[str]:
    """A training from the checkpoint's weights, with new optimizer state."""
    load = ("--load", str(checkpoint), "--finetune", "--no-load-optim", "--no-load-rng")
    evaluate = ("--eval-iters", "2", "--eval-interval", "5")
    return tiny_gpt(*load, *evaluate, *more, corpus=corpus)


@pytest.fixture(scope="module")
def unsplit(launcher: Launcher, checkpoint: Path, corpus: Path) -> Run:
    """The training that the split ones must equal."""
    return launcher.run(continued(checkpoint, corpus), ranks=1).check()


def test_training_learns_the_corpus(unsplit):
    assert unsplit.losses[-1] < unsplit.losses[0] - 0.2 < math.log(256) - 0.5
    assert [line["iteration"] for line in unsplit.validations] == [5, 10, 10, 10]


@pytest.fixture(scope="module")
def exact(untied_checkpoint: Path, corpus: Path) -> list[str]:
    """A training whose sums have one order: nothing is tied over ranks, no gradient is clipped."""
    untied = ("--untie-embeddings-and-output-weights", "--clip-grad", "1000")
    return continued(untied_checkpoint, corpus, *untied)


@pytest.fixture(scope="module")
def unsplit_exact(launcher: Launcher, exact: list[str]) -> Run:
    return launcher.run(exact, ranks=1).check()


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 1), (4, 1), (2, 2), (2, 4), (4, 2)])
def test_pipelines_log_the_same_digits(launcher, exact, unsplit_exact, ranks, chunks):
    run = launcher.run([*exact, *pipeline(ranks, chunks)], ranks=ranks).check()
    assert len(run.losses) == 10
    assert run.losses == unsplit_exact.losses
    assert run.grad_norms == unsplit_exact.grad_norms
    assert run.validation_losses == pytest.approx(unsplit_exact.validation_losses, rel=3e-7)


def test_tied_embeddings_differ_by_rounding_only(launcher, checkpoint, corpus, unsplit):
    run = launcher.run(continued(checkpoint, corpus, *pipeline(2)), ranks=2).check()
    assert run.losses == pytest.approx(unsplit.losses, rel=1e-6)
    assert run.grad_norms == pytest.approx(unsplit.grad_norms, rel=1e-3)


def test_tensor_parallel_ranks_log_the_same(launcher, checkpoint, corpus, unsplit):
    split = continued(checkpoint, corpus, "--tensor-model-parallel-size", "2", *pipeline(2))
    run = launcher.run(split, ranks=4).check()
    assert run.losses == pytest.approx(unsplit.losses, rel=1e-6)
    assert run.grad_norms == pytest.approx(unsplit.grad_norms, rel=1e-3)


def test_data_parallel_ranks_log_the_same_with_and_without_overlap(
    launcher, checkpoint, corpus, unsplit
):
    plain = launcher.run(continued(checkpoint, corpus), ranks=2).check()
    overlap = ("--overlap-grad-reduce", "--overlap-param-gather")
    sharded = continued(checkpoint, corpus, "--use-distributed-optimizer", *overlap)
    run = launcher.run(sharded, ranks=2).check()
    assert plain.losses == pytest.approx(unsplit.losses, rel=1e-6)
    assert run.losses == pytest.approx(plain.losses, rel=1e-6)
    assert run.grad_norms == plain.grad_norms


def test_overlap_in_an_interleaved_pipeline(launcher, checkpoint, corpus, unsplit):
    overlap = ("--overlap-grad-reduce", "--overlap-param-gather", "--use-distributed-optimizer")
    split = continued(checkpoint, corpus, *pipeline(2, 2), *overlap)
    run = launcher.run(split, ranks=4).check()
    assert run.losses == pytest.approx(unsplit.losses, rel=1e-6)


@pytest.mark.parametrize("precision", [("--bf16",), ("--fp16", "--initial-loss-scale", "1024")])
def test_half_precision_stays_close(launcher, checkpoint, corpus, unsplit, precision):
    split = continued(checkpoint, corpus, *pipeline(2, 2), *precision)
    run = launcher.run(split, ranks=2).check()
    assert run.losses == pytest.approx(unsplit.losses, rel=2e-3)
    assert run.losses != unsplit.losses


def test_recomputing_draws_the_same_dropout_again(launcher, corpus):
    dropout = (*pipeline(2), "--hidden-dropout", "0.1", "--attention-dropout", "0.1")
    arguments = tiny_gpt(*dropout, corpus=corpus, iterations=4)
    kept = launcher.run(arguments, ranks=2).check()
    recomputed = launcher.run([*arguments, *RECOMPUTE], ranks=2).check()
    assert recomputed.losses == kept.losses
    assert recomputed.grad_norms == kept.grad_norms


def test_llama_like_layers_train(launcher, corpus):
    run = launcher.run(tiny_gpt(*LLAMA, *pipeline(2, 2), corpus=corpus), ranks=2).check()
    assert run.losses[0] == pytest.approx(math.log(256), abs=0.3)
    assert run.losses[-1] < run.losses[0] - 0.5


def test_both_dispatchers_send_tokens_to_the_same_experts(launcher, corpus):
    """Expert parallel; all-to-all needs split sizes that gloo understands."""
    runs = [
        launcher.run(
            tiny_gpt(
                *(*MOE, "--expert-model-parallel-size", "2"),
                *("--moe-token-dispatcher-type", dispatcher),
                corpus=corpus,
                iterations=4,
            ),
            ranks=2,
        ).check()
        for dispatcher in ("allgather", "alltoall")
    ]
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-6)
    assert "load_balancing_loss" in runs[0].iterations[0]


def test_a_checkpoint_continues_at_another_pipeline_size(launcher, corpus, tmp_path):
    arguments = tiny_gpt("--clip-grad", "1000", corpus=corpus, iterations=6)
    straight = launcher.run([*arguments, *pipeline(2)], ranks=2).check()
    save = ("--save", str(tmp_path), "--save-interval", "1000", "--exit-interval", "3")
    launcher.run([*arguments, *pipeline(2), *save], ranks=2).check()
    resumed = launcher.run([*arguments, "--load", str(tmp_path)], ranks=1).check()
    assert [line["iteration"] for line in resumed.iterations] == [4, 5, 6]
    first, _, last = resumed.losses  # A run's second line is a mean of two iterations.
    assert (first, last) == (straight.losses[3], straight.losses[5])
    assert resumed.grad_norms == straight.grad_norms[3:]

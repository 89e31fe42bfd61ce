"""Chimera follows Megatron where a step is not like the one before, and where there are experts."""

import pytest
from growing import growing

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

CHIMERA = ("--pipeline-schedule", "chimera")
LAST_DIGIT_OF_LOSS = 1.01e-6
LAST_DIGIT_OF_NORM = 1.01e-3

EXPERTS = (
    *("--num-experts", "4", "--moe-router-topk", "2", "--moe-aux-loss-coeff", "0.01"),
    *("--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias"),
    *("--moe-router-bias-update-rate", "0.01", "--disable-bias-linear"),
    *("--untie-embeddings-and-output-weights", "--moe-token-dispatcher-type", "alltoall"),
)


@pytest.fixture
def both(launcher, tmp_path):
    """The same training from the same weights by plain Megatron and by Chimera."""

    def run(*flags, ranks, pp=2, model=(), arguments=tiny_gpt, **settings):
        save = ("--save", str(tmp_path), "--save-interval", "1", "--ckpt-format", "torch_dist")
        launcher.run(tiny_gpt(*model, *save, layers=4, iterations=1), ranks=1).check()
        start = ("--load", str(tmp_path), "--finetune", "--no-load-optim", "--no-load-rng")
        chosen = ("--pipeline-model-parallel-size", str(pp), *start, *model, *flags)
        return [
            launcher.run(arguments(*chosen, *schedule, layers=4, **settings), ranks=ranks).check()
            for schedule in ((), CHIMERA)
        ]

    return run


def assert_same(ours, plain, *more):
    assert ours.losses == pytest.approx(plain.losses, rel=0, abs=LAST_DIGIT_OF_LOSS)
    assert ours.grad_norms == pytest.approx(plain.grad_norms, rel=0, abs=LAST_DIGIT_OF_NORM)
    for name in more:
        values = [[step[name] for step in run.iterations] for run in (ours, plain)]
        assert values[0] == pytest.approx(values[1], rel=1e-5)
        assert all(values[0])


def test_batches_that_grow_from_one_microbatch(both):
    """The copy that has nothing to do at first reads its own microbatches later."""
    flags = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")
    plain, ours = both(*flags, ranks=2, arguments=growing)
    sizes = [step["global batch size"] for step in plain.iterations]
    assert sizes == [1, 1, 2, 2, 3, 3, 4, 4]
    assert_same(ours, plain)


def test_steps_with_a_bad_result_are_left_out(both, tmp_path):
    """Both copies pass over the data of a step that failed on one rank in two jobs."""
    tracker = tmp_path / "rejected.txt"
    tracker.write_text(
        "".join(
            f"ts=1 node=a device=0 jobID={job} rank=1 iteration={step} status=rerun_disabled "
            "result=nan message='the loss is NaN'\n"
            for job in ("first", "second")
            for step in (2, 4)
        )
    )
    flags = ("--result-rejected-tracker-filename", str(tracker))
    plain, ours = both(*flags, ranks=2, microbatches=3, iterations=6)
    assert [step["iteration"] for step in plain.iterations] == [1, 3, 5, 6]
    assert_same(ours, plain)


@pytest.mark.parametrize(
    ("dp", "flags"),
    [
        pytest.param(1, (), id="plain"),
        pytest.param(
            2,
            ("--expert-model-parallel-size", "2", "--use-distributed-optimizer"),
            id="ep2-sharded",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_experts_are_balanced_over_both_copies(both, dp, flags):
    """Auxiliary loss as reported; expert biases change which experts later steps choose."""
    plain, ours = both(*flags, ranks=2 * dp, model=EXPERTS, microbatches=5 * dp, iterations=6)
    assert_same(ours, plain, "load_balancing_loss")


@pytest.mark.parametrize(
    "model",
    [
        pytest.param((), id="gelu"),
        # Gate and input are one tensor, which a checkpoint splits: its copies are marked as well.
        pytest.param(("--swiglu",), id="swiglu", marks=pytest.mark.slow),
    ],
)
def test_tokens_of_both_copies_are_counted(both, model):
    plain, ours = both(
        "--calculate-per-token-loss", ranks=2, model=model, microbatches=3, iterations=4
    )
    assert_same(ours, plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer", [(), ("--use-distributed-optimizer",)], ids=["plain", "sharded"]
)
def test_tensor_parallel_ranks_each_have_their_mirror(both, optimizer):
    plain, ours = both(
        *("--tensor-model-parallel-size", "2", *optimizer), ranks=4, microbatches=3, iterations=4
    )
    assert_same(ours, plain)

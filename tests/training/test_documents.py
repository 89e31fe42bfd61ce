"""Masks and positions that come with the data: tokens do not see the document before theirs."""

import numpy as np
import pytest
from checkpoints import start_from
from growing import growing
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

DOCUMENTS = ("--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss")
CHIMERA = ("--pipeline-schedule", "chimera")
LAST_DIGIT_OF_LOSS = 1.01e-6
LAST_DIGIT_OF_NORM = 1.01e-3


@pytest.fixture(scope="module")
def short_documents(tmp_path_factory):
    """Documents of which several fit into a sequence of 32 tokens."""
    prefix = tmp_path_factory.mktemp("corpus") / "short"
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint8)
    numbers = np.random.default_rng(1)
    for length in numbers.integers(3, 20, size=2000):
        document = np.append(numbers.integers(0, 40, size=length), 255).astype(np.uint8)
        builder.add_document(document, [len(document)])
    builder.finalize(f"{prefix}.idx")
    return prefix


@pytest.fixture(scope="module")
def train(launcher, plain_checkpoint, short_documents):
    def run(*flags, pp, arguments=tiny_gpt, **settings):
        given = arguments(
            *("--pipeline-model-parallel-size", str(pp), "--clip-grad", "0"),
            *start_from(plain_checkpoint(layers=8)),
            *flags,
            layers=8,
            corpus=short_documents,
            **settings,
        )
        return launcher.run(given, ranks=pp).check()

    return run


@pytest.fixture(scope="module")
def unsplit(train):
    """Plain Megatron, every layer of which has the masks as there is one stage."""
    return train(*DOCUMENTS, pp=1, microbatches=5, iterations=12)


def assert_same(ours, plain):
    assert ours.losses == pytest.approx(plain.losses, rel=0, abs=LAST_DIGIT_OF_LOSS)
    assert ours.grad_norms == pytest.approx(plain.grad_norms, rel=0, abs=LAST_DIGIT_OF_NORM)


@pytest.mark.parametrize(
    ("pp", "schedule"),
    [
        (4, ()),
        (2, ("--pipeline-schedule", "hanayo", "--num-waves", "2")),
        (2, CHIMERA),
        (4, CHIMERA),
    ],
)
def test_every_layer_has_the_masks_of_its_microbatch(train, unsplit, pp, schedule):
    ours = train(*DOCUMENTS, *schedule, pp=pp, microbatches=5, iterations=12)
    assert_same(ours, unsplit)
    if schedule != CHIMERA:
        assert ours.losses == unsplit.losses


def test_masks_stay_in_step_where_a_copy_runs_nothing_at_first(train):
    """Every stage reads data, also those in the middle of the idle copy."""
    plain = train(*DOCUMENTS, pp=4, arguments=growing)
    sizes = [step["global batch size"] for step in plain.iterations]
    assert sizes == [1, 1, 2, 2, 3, 3, 4, 4]
    assert_same(train(*DOCUMENTS, *CHIMERA, pp=4, arguments=growing), plain)


@pytest.mark.slow
def test_masks_reach_all_tensor_parallel_ranks(
    launcher, unsplit, short_documents, plain_checkpoint
):
    given = tiny_gpt(
        *("--pipeline-model-parallel-size", "2", "--tensor-model-parallel-size", "2"),
        *("--clip-grad", "0", *start_from(plain_checkpoint(layers=8)), *DOCUMENTS, *CHIMERA),
        layers=8,
        corpus=short_documents,
        microbatches=5,
        iterations=12,
    )
    assert_same(launcher.run(given, ranks=4).check(), unsplit)

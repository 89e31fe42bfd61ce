"""Both copies of the model stay equal bit by bit, and cost what they must."""

import json
import re

import pytest

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

CHIMERA = ("--pipeline-schedule", "chimera")
SHARDED = ("--use-distributed-optimizer",)
OVERLAP = ("--overlap-grad-reduce", "--overlap-param-gather")


def reports(launcher, *flags, ranks, pp, **settings):
    """What every rank holds after a training from random weights."""
    arguments = tiny_gpt("--pipeline-model-parallel-size", str(pp), *flags, **settings)
    run = launcher.run(arguments, ranks=ranks, module="training.state_report").check()
    return [json.loads(re.search(r"^state report: (.*)$", out, re.M)[1]) for out in run.stdout]


@pytest.mark.parametrize(
    ("pp", "dp", "flags"),
    [
        pytest.param(4, 1, (), id="plain"),
        pytest.param(2, 2, (*SHARDED, *OVERLAP, "--bf16"), id="sharded-bf16"),
        pytest.param(
            2, 2, ("--data-parallel-random-init",), id="random-init", marks=pytest.mark.slow
        ),
        pytest.param(4, 1, (*SHARDED, "--fp16"), id="sharded-fp16", marks=pytest.mark.slow),
    ],
)
def test_copies_are_equal_after_20_steps(launcher, pp, dp, flags):
    found = reports(
        launcher, *CHIMERA, *flags, ranks=pp * dp, pp=pp, microbatches=5 * dp, iterations=20
    )
    copies = {}
    for held in found:
        rank = held["pp_rank"]
        copies.setdefault(min(rank, pp - 1 - rank), []).append(held["digests"])
    assert [len(holders) for holders in copies.values()] == [2 * dp] * (pp // 2)
    for first, *others in copies.values():
        assert len(set(first.values())) > len(first) // 2, "weights are all alike"
        assert all(other == first for other in others)
    assert copies[0][0] != copies.get(1, [None])[0]


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param((), id="plain", marks=pytest.mark.slow),
        pytest.param(SHARDED, id="sharded"),
    ],
)
def test_bytes_of_weights_and_optimizer(launcher, optimizer, record_property):
    """Two copies of the weights; with the distributed optimizer, optimizer state as of one."""
    untied = ("--untie-embeddings-and-output-weights",)
    held = {}
    for name, flags in (
        ("1f1b", ()),
        ("hanayo", ("--pipeline-schedule", "hanayo", "--num-waves", "1")),
        ("chimera", CHIMERA),
    ):
        found = reports(launcher, *untied, *optimizer, *flags, ranks=4, pp=4, iterations=1)
        held[name] = {
            kind: [rank[f"{kind}_bytes"] for rank in found] for kind in ("parameter", "optimizer")
        }
        record_property(name, held[name])
        print(f"{name}: bytes by rank {held[name]}")  # noqa: T201

    weights = sum(held["1f1b"]["parameter"])
    assert sum(held["chimera"]["parameter"]) == 2 * weights
    # A step counter of 4 bytes a parameter comes with every shard.
    states = {name: sum(found["optimizer"]) for name, found in held.items()}
    assert states["1f1b"] == pytest.approx(2 * weights, rel=0.01)
    assert states["hanayo"] == pytest.approx(2 * weights, rel=0.01)
    assert states["chimera"] == pytest.approx((2 if optimizer else 4) * weights, rel=0.01)
    # Ends and middle of the model are on every rank of a pair.
    assert max(held["chimera"]["optimizer"]) <= max(held["1f1b"]["optimizer"]) * (
        1.01 if optimizer else 2.01
    )

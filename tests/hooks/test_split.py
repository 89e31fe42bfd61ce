"""Stages get layers such that no rank is slower than it must be."""

from argparse import Namespace
from itertools import combinations_with_replacement

import pytest

from hanayo_megatron.lowering.lower import lower
from hanayo_megatron.megatron.split import (
    embedding_cost,
    head_cost,
    layout_string,
    split_layers,
)
from hanayo_megatron.schedule import ScheduleSpec, build_schedule
from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.placement import bidirectional, linear, looped, wave
from hanayo_megatron.simulate.simulate import simulate

PLACEMENTS = [linear(3), wave(2, 1), wave(2, 2), wave(3, 1), looped(2, 2), bidirectional(2)]


def rank_costs(layers, placement, first, last):
    ends = [0.0] * placement.model_stages
    ends[0] += first
    ends[-1] += last
    costs = [0.0] * placement.num_ranks
    for stage, rank in enumerate(placement.rank_of):
        costs[rank] += layers[stage % len(layers)] + ends[stage % len(layers)]
    return costs


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("ends", [(0.0, 0.0), (0.0, 0.3), (0.0, 2.2), (1.0, 1.0)])
def test_no_split_has_a_faster_slowest_rank(placement, ends):
    """Against every split there is; an equal one may be at most one part in twenty slower."""
    stages = placement.model_stages
    for num_layers in range(stages, stages + 5):
        found = split_layers(num_layers, placement, first_cost=ends[0], last_cost=ends[1])
        assert sum(found) == num_layers
        assert min(found) >= 1
        best = min(
            max(rank_costs([1 + more.count(s) for s in range(stages)], placement, *ends))
            for more in combinations_with_replacement(range(stages), num_layers - stages)
        )
        slack = 1 / 0.95 if len(set(found)) == 1 else 1
        assert max(rank_costs(found, placement, *ends)) <= best * slack + 1e-9


def test_equal_where_it_costs_little():
    assert split_layers(16, wave(4, 2), last_cost=0.3) == [1] * 16
    assert split_layers(32, wave(4, 1), last_cost=0.3) == [4] * 8


def test_a_large_head_moves_layers_away_from_its_rank():
    """32 layers and a head of 2.2: equal stages would make rank 0 a tenth slower."""
    layers = split_layers(32, wave(4, 1), last_cost=2.2)
    costs = rank_costs(layers, wave(4, 1), 0.0, 2.2)
    assert max(costs) == 9
    assert layers[-1] < layers[0]


def test_too_few_layers():
    with pytest.raises(ValueError, match="3 layers do not fill 4 stages"):
        split_layers(3, wave(2, 1))


def arguments(**given):
    sizes = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "seq_length": 4096,
        "vocab_size": 128_000,
    }
    return Namespace(**{**sizes, **given})


def test_costs_of_the_ends():
    """A layer of hidden size h has 12 h^2 weights and s h of causal scores; the head has h v."""
    layer = 12 * 4096**2 + 4096 * 4096
    assert head_cost(arguments()) == pytest.approx(4096 * 128_000 / layer)
    assert head_cost(arguments(vocab_size=None)) == 0
    assert head_cost(arguments(hidden_size=None)) == 0
    assert head_cost(arguments(account_for_loss_in_pipeline_split=True)) == 1
    assert head_cost(arguments(mtp_num_layers=1)) == pytest.approx(1 + 2 * head_cost(arguments()))
    assert embedding_cost(arguments()) == 0
    assert embedding_cost(arguments(account_for_embedding_in_pipeline_split=True)) == 1


def test_costs_of_other_layers():
    """SwiGLU with its default width has as many weights; two experts of 8 are two MLPs."""
    plain = head_cost(arguments())
    assert head_cost(arguments(swiglu=True)) == pytest.approx(plain)
    experts = arguments(num_experts=8, moe_router_topk=2)
    assert head_cost(experts) == pytest.approx(plain * (12 + 1) / (12 + 8 + 1))
    grouped = arguments(group_query_attention=True, num_query_groups=8)
    assert head_cost(grouped) == pytest.approx(plain * (12 + 1) / (12 - 1.5 + 1))


def test_layout_in_stage_order():
    assert layout_string([2, 1, 1, 2]) == "Ett|t|t|ttL"
    assert layout_string([1, 1], mtp_num_layers=2) == "Et|tmmL"


@pytest.mark.parametrize(
    ("schedule", "placement", "waves", "least_gain"),
    [
        ("hanayo", wave(4, 1), 1, 0.05),
        ("hanayo", wave(8, 1), 1, 0.15),
        ("hanayo", wave(4, 2), 2, 0.06),
        ("1f1b", linear(4), 1, 0.09),
    ],
)
def test_the_simulated_step_is_shorter_than_with_equal_stages(
    schedule, placement, waves, least_gain
):
    """32 layers and a head of 2.2 layers: the cost of a 7B model with 128,000 words."""
    stages = placement.model_stages

    def makespan(layers):
        times = [float(count) for count in layers]
        times[-1] += 2.2
        costs = Costs(
            stage_times={
                (kind, stage): factor * time
                for kind, factor in ((Kind.F, 1.0), (Kind.B, 2.0))
                for stage, time in enumerate(times)
            }
        )
        microbatches = 4 * placement.num_ranks
        spec = ScheduleSpec(
            pp=placement.num_ranks, microbatches=microbatches, waves=waves, costs=costs
        )
        return simulate(lower(build_schedule(schedule, spec), costs), costs).makespan

    balanced = makespan(split_layers(32, placement, last_cost=2.2))
    assert balanced <= (1 - least_gain) * makespan([32 // stages] * stages)

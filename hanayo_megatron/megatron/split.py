"""How many layers each stage gets, and Megatron's layout string for it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hanayo_megatron.schedule.placement import Placement

_WORTH_UNEQUAL = 0.95
"""An equal split is kept unless the slowest rank gets faster than this share of its time.

The costs are estimates, and equal stages make equal transfers and memory.
"""


def split_layers(
    num_layers: int,
    placement: Placement,
    *,
    first_cost: float = 0.0,
    last_cost: float = 0.0,
) -> list[int]:
    """Layers of every stage such that the slowest rank is as fast as it can be.

    Equal shares, where there are any, unless they are clearly slower. Within a rank the stages
    are balanced too; what cannot be balanced goes to later stages, which hold fewer activations.

    Args:
        num_layers: of the whole model, at least one a stage.
        placement: the rank of every stage.
        first_cost: what the first stage does besides, in layers (embedding).
        last_cost: what the last stage does besides, in layers (head and loss).

    Raises ValueError if there are fewer layers than stages.
    """
    num_stages = placement.model_stages
    if num_layers < num_stages:
        raise ValueError(f"{num_layers} layers do not fill {num_stages} stages")
    ends = [0.0] * num_stages
    ends[0] += first_cost
    ends[-1] += last_cost
    layers = [1] * num_stages
    for _ in range(num_layers - num_stages):
        ranks = _rank_costs(layers, ends, placement)
        stage = min(
            range(num_stages),
            key=lambda s: (
                max(ranks[r] for r in placement.rank_of[s::num_stages]),
                layers[s] + ends[s],
                -s,
            ),
        )
        layers[stage] += 1
    if num_layers % num_stages == 0:
        equal = [num_layers // num_stages] * num_stages
        slowest, balanced = (max(_rank_costs(x, ends, placement)) for x in (equal, layers))
        if balanced > _WORTH_UNEQUAL * slowest:
            return equal
    return layers


def head_cost(args: argparse.Namespace) -> float:
    """Multiplications of the output layer for a token, in those of one transformer layer.

    Weights and attention scores are counted, norms and activations are not. Megatron's options
    --account-for-loss-in-pipeline-split and --mtp-num-layers are counted as their user asks:
    a whole layer for the loss; a layer and another head for each further token predicted.
    """
    further = getattr(args, "mtp_num_layers", None) or 0
    if getattr(args, "account_for_loss_in_pipeline_split", False):
        return 1.0 + 2.0 * further
    if None in (args.hidden_size, args.num_attention_heads, args.seq_length):
        return 0.0  # Megatron will ask for them
    vocabulary = getattr(args, "padded_vocab_size", None) or getattr(args, "vocab_size", None) or 0
    head = args.hidden_size * vocabulary / _layer_multiplications(args)
    return head + (1.0 + head) * further


def embedding_cost(args: argparse.Namespace) -> float:
    """A look-up costs nothing beside a layer, unless Megatron's option asks for a whole layer."""
    return float(bool(getattr(args, "account_for_embedding_in_pipeline_split", False)))


def layout_string(layers: Sequence[int], *, mtp_num_layers: int = 0) -> str:
    """Megatron's --pipeline-model-parallel-layout for stages of so many layers, in stage order."""
    stages = ["t" * count for count in layers]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp_num_layers + "L"
    return "|".join(stages)


def _rank_costs(layers: Sequence[int], ends: Sequence[float], placement: Placement) -> list[float]:
    """Layers and ends of all stages of a rank, every replica's."""
    costs = [0.0] * placement.num_ranks
    for stage, rank in enumerate(placement.rank_of):
        costs[rank] += layers[stage % len(layers)] + ends[stage % len(layers)]
    return costs


def _layer_multiplications(args: argparse.Namespace) -> float:
    hidden = args.hidden_size
    heads = args.num_attention_heads
    per_head = getattr(args, "kv_channels", None) or hidden // heads
    groups = heads
    if getattr(args, "group_query_attention", False):
        groups = getattr(args, "num_query_groups", None) or heads
    projections = 2 * hidden * per_head * (heads + groups)
    scores = args.seq_length * per_head * heads  # causal: half of the two products
    mlp = (3 if getattr(args, "swiglu", False) else 2) * hidden
    if getattr(args, "num_experts", None):
        width = getattr(args, "moe_ffn_hidden_size", None) or _mlp_width(args)
        width = width * args.moe_router_topk
        width += getattr(args, "moe_shared_expert_intermediate_size", None) or 0
    else:
        width = _mlp_width(args)
    return projections + scores + mlp * width


def _mlp_width(args: argparse.Namespace) -> float:
    given = getattr(args, "ffn_hidden_size", None)
    if given:
        return given
    return args.hidden_size * (8 / 3 if getattr(args, "swiglu", False) else 4)

"""Expert biases of routers follow the tokens of both copies of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.utils import get_attr_wrapped_model

from hanayo_megatron.megatron.hooks import Hook
from hanayo_megatron.megatron.mirror import swap_with_mirror


def replica_router_hooks() -> list[Hook]:
    """Hook on the update of expert biases at the end of a step."""
    return [
        Hook(
            "megatron.core.distributed.finalize_model_grads:_update_router_expert_bias",
            ("model", "config"),
            _counting_both_copies,
        )
    ]


def _counting_both_copies(original: Callable) -> Callable:
    def update_router_expert_bias(model: list[torch.nn.Module], *args: Any, **kwargs: Any) -> None:
        routers = [
            module
            for chunk in model
            for module in get_attr_wrapped_model(chunk, "modules")()
            if getattr(module, "expert_bias", None) is not None
        ]
        if routers:
            counts = torch.stack([router.local_tokens_per_expert for router in routers])
            for router, theirs in zip(routers, swap_with_mirror(counts), strict=True):
                router.local_tokens_per_expert += theirs
        original(model, *args, **kwargs)

    return update_router_expert_bias

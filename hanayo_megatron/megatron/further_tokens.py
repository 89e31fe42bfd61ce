"""Brings the losses of multi-token prediction to the rank on which Megatron logs."""

from __future__ import annotations

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

from hanayo_megatron.megatron.losses import move_to_rank

_VALUES = ("loss_values", "correct_values", "total_values")


def move_further_token_losses(*, source: int, target: int, group: dist.ProcessGroup) -> None:
    """Move what the last stage has tracked since Megatron last logged to another rank.

    Megatron tracks the values in a class and expects them on the last rank of the pipeline.
    """
    if source == target:
        return
    tracker = MTPLossLoggingHelper.tracker
    values = [tracker.pop(name, None) for name in _VALUES] if group.rank() == source else []
    moved = move_to_rank(values, source=source, target=target, group=group)
    for name, value in zip(_VALUES, moved, strict=False):
        if value is None:
            continue
        tracker[name] = tracker[name] + value if name in tracker else value
        tracker["avg_group"] = parallel_state.get_data_parallel_group(with_context_parallel=True)

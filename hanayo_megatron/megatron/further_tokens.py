"""Brings the losses of multi-token prediction to the rank on which Megatron logs."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

from hanayo_megatron.megatron.losses import Outlines, move_to_rank

_VALUES = ("loss_values", "correct_values", "total_values")


def move_further_token_losses(
    *, sources: Sequence[int], target: int, group: dist.ProcessGroup, outlines: Outlines
) -> None:
    """Add what the last stages have tracked since Megatron last logged to another rank's values.

    Megatron tracks the values in a class and expects them on the last rank of the pipeline.
    """
    tracker = MTPLossLoggingHelper.tracker
    for source in sources:
        if source == target:
            continue
        values = [tracker.pop(name, None) for name in _VALUES] if group.rank() == source else []
        moved = move_to_rank(values, source=source, target=target, group=group, outlines=outlines)
        for name, value in zip(_VALUES, moved, strict=False):
            if value is not None:
                tracker[name] = tracker[name] + value if name in tracker else value
                tracker["avg_group"] = parallel_state.get_data_parallel_group(
                    with_context_parallel=True
                )

"""A rank whose clock is ahead; for gloo_processes.run_ranks."""

from __future__ import annotations

import time

import torch.distributed as dist

from hanayo_megatron.runtime.clock_comparison import seconds_ahead


def compare_clocks(rank: int, ahead: float) -> float:
    true_time = time.perf_counter
    time.perf_counter = lambda: true_time() + rank * ahead
    return seconds_ahead(dist.group.WORLD)

"""Ranks as processes under gloo, with plain modules instead of Megatron."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pipeline_model import Conditions, ModuleWorker, make_stages, run_reference

from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.runtime.executor import ExecutionStats, Executor
from hanayo_megatron.runtime.torch_transport import transport_for
from hanayo_megatron.schedule import Schedule, ScheduleSpec, build_schedule
from hanayo_megatron.simulate.prefetch import lower_with_least_buffers

_PAGE = os.sysconf("SC_PAGE_SIZE")


def run_ranks(work: Callable, num_ranks: int, *args: Any, timeout: float) -> list[Any]:
    """``work(rank, *args)`` in a process per rank, all in one gloo group; results by rank.

    Raises TimeoutError if a rank takes too long, RuntimeError if one fails. No process is left.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "gloo_processes"])
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(num_ranks)]
        processes = [
            context.Process(
                target=_main,
                args=(pipe[1], Path(folder) / "store", rank, num_ranks, work, args),
                daemon=True,
            )
            for rank, pipe in enumerate(pipes)
        ]
        try:
            for process in processes:
                process.start()
            deadline = time.monotonic() + timeout
            results = []
            for rank, (reader, writer) in enumerate(pipes):
                writer.close()
                if not reader.poll(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"rank {rank} had no result after {timeout} s")
                try:
                    results.append(pickle.loads(reader.recv_bytes()))
                except EOFError:
                    raise RuntimeError(f"rank {rank} failed") from None
            return results
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()


def _main(pipe, store: Path, rank: int, num_ranks: int, work: Callable, args: tuple) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    pipe.send_bytes(pickle.dumps(work(rank, *args)))  # send() shares the memory of tensors
    dist.barrier()
    pipe.close()


def train_and_measure(rank: int, name: str, spec: ScheduleSpec, steps: int, warm: int) -> list:
    """Pages and Python objects in use after ``warm`` and after all steps."""
    lowered = lower_with_least_buffers(build_schedule(name, spec))
    stages = make_stages(lowered.schedule.placement.num_stages)
    measured = []
    for step in range(1, steps + 1):
        _step(lowered, rank, stages)
        for stage in stages:
            stage.zero_grad()
        if step in (warm, steps):
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            measured.append((pages * _PAGE, len(gc.get_objects())))
    return measured


def train_after_a_delay(rank: int, name: str, spec: ScheduleSpec, seed: int) -> bool:
    """Whether the gradients of this rank's stages are those of torch on one rank."""
    schedule = build_schedule(name, spec)
    stages = make_stages(schedule.placement.num_stages)
    time.sleep(random.Random(seed * 1000 + rank).uniform(0, 0.6))
    _step(lower_with_least_buffers(schedule), rank, stages)
    return _equal_reference(stages, schedule)


def train_all(
    rank: int, cases: list[tuple[str, ScheduleSpec, Conditions]]
) -> list[tuple[bool, ExecutionStats]]:
    """The same for one schedule after another, with what the executor counted."""
    results = []
    for name, spec, how in cases:
        schedule = build_schedule(name, spec)
        stages = make_stages(schedule.placement.num_stages, several=how.several)
        stats = _step(how.lists(schedule), rank, stages, how)
        equal = _equal_reference(stages, schedule, several=how.several, ragged=how.ragged)
        results.append((equal, stats))
    return results


def _step(
    lowered: LoweredSchedule,
    rank: int,
    stages: list[torch.nn.Module],
    how: Conditions | None = None,
) -> ExecutionStats:
    how = how or Conditions()
    num_stages = lowered.schedule.placement.num_stages
    executor = Executor(
        lowered,
        rank=rank,
        worker=ModuleWorker(stages, lowered.schedule, ragged=how.ragged),
        messenger=how.messenger(transport_for(dist.group.WORLD, num_stages=num_stages)),
    )
    executor.run()
    return executor.stats


def _equal_reference(stages: list[torch.nn.Module], schedule: Schedule, **model: bool) -> bool:
    """Whether the gradients that are there are those of torch on one rank."""
    expected, _ = run_reference(schedule, **model)
    gradients = [p.grad for stage in stages for p in stage.parameters()]
    return all(
        torch.allclose(ours, theirs, rtol=1e-11, atol=1e-12)
        for ours, theirs in zip(gradients, expected, strict=True)
        if ours is not None
    )

"""A small model cut into stages, run by the executor in threads or by torch on one rank."""

from __future__ import annotations

import torch

from hanayo_megatron.lowering.lower import lower
from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.runtime.executor import ExecutionStats, Executor
from hanayo_megatron.runtime.messenger import KnownShapes
from hanayo_megatron.runtime.strict_transport import StrictNetwork
from hanayo_megatron.schedule.schedule import Schedule

WIDTH = 4
ROWS = 3


def make_stages(num_stages: int) -> list[torch.nn.Module]:
    generator = torch.Generator().manual_seed(7)
    stages = []
    for _ in range(num_stages):
        layer = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator).double())
        stages.append(torch.nn.Sequential(layer, torch.nn.Tanh()))
    return stages


def make_data(num_microbatches: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(ROWS, WIDTH, generator=generator).double() for _ in range(num_microbatches)]


class ModuleWorker:
    """Runs plain modules; frees outputs as Megatron does and counts what is synchronised."""

    def __init__(self, stages: list[torch.nn.Module], schedule: Schedule) -> None:
        self._stages = stages
        self._placement = schedule.placement
        self._data = make_data(schedule.num_microbatches)
        self.losses: dict[int, float] = {}
        self.synchronised: list[int] = []

    def forward(self, stage, microbatch, input_tensor):
        first = self._placement.is_first(stage)
        output = self._stages[stage](self._data[microbatch] if first else input_tensor)
        if self._placement.is_last(stage):
            output = output.square().sum()
            self.losses[microbatch] = output.item()
        return output

    def backward(self, stage, microbatch, *, input_tensor, output, output_gradient):
        if output_gradient is not None:
            assert output.numel() == 1, f"output of stage {stage} was not freed"
        torch.autograd.Variable._execution_engine.run_backward(
            (output,),
            (torch.ones_like(output) if output_gradient is None else output_gradient,),
            False,
            False,
            (),
            allow_unreachable=True,
            accumulate_grad=True,
        )
        return None if input_tensor is None else input_tensor.grad

    def empty(self, transfer: Transfer):
        return torch.full((ROWS, WIDTH), torch.nan, dtype=torch.float64)

    def free(self, output):
        output.data = output.new_empty((1,))

    def sync_gradients(self, stage):
        self.synchronised.append(stage)


def run_reference(schedule: Schedule) -> tuple[list[torch.Tensor], dict[int, float]]:
    """Gradients per parameter and losses per microbatch, by torch on one rank."""
    stages = make_stages(schedule.placement.num_stages)
    losses = {}
    for microbatch, data in enumerate(make_data(schedule.num_microbatches)):
        loss = torch.nn.Sequential(*stages)(data).square().sum()
        loss.backward()
        losses[microbatch] = loss.item()
    return [p.grad for stage in stages for p in stage.parameters()], losses


def run_pipeline(
    schedule: Schedule, *, communicators: str = "pair"
) -> tuple[list[torch.Tensor], dict[int, float], list[ModuleWorker], list[ExecutionStats]]:
    """The same by the executor, one thread a rank, on the strict transport."""
    stages = make_stages(schedule.placement.num_stages)
    lowered = lower(schedule)
    workers = [ModuleWorker(stages, schedule) for _ in lowered.programs]

    def work(rank, transport):
        messenger = KnownShapes(transport, workers[rank].empty)
        executor = Executor(lowered, rank=rank, worker=workers[rank], messenger=messenger)
        executor.run()
        return executor.stats

    stats = StrictNetwork(schedule.placement.num_ranks, communicators).run(work)
    losses = {m: loss for worker in workers for m, loss in worker.losses.items()}
    return [p.grad for stage in stages for p in stage.parameters()], losses, workers, stats

"""A small model cut into stages, run by the executor in threads or by torch on one rank."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import torch

from hanayo_megatron.lowering.announced import announce_shapes
from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.lowering.rendezvous import Communicator
from hanayo_megatron.runtime.checked_transport import CheckedTransport
from hanayo_megatron.runtime.executor import ExecutionStats, Executor
from hanayo_megatron.runtime.messenger import Messenger
from hanayo_megatron.runtime.receive_buffers import ReceiveBuffers
from hanayo_megatron.runtime.strict_transport import StrictNetwork
from hanayo_megatron.runtime.tensors import Tensors, TensorSpec, parts
from hanayo_megatron.schedule.schedule import Schedule
from hanayo_megatron.simulate.prefetch import lower_with_least_buffers

WIDTH = 4
ROWS = 3


class Stage(torch.nn.Module):
    """A layer; on request it hands on tensors of several dtypes, one without a gradient."""

    def __init__(self, generator: torch.Generator, *, several: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        with torch.no_grad():
            for parameter in self.linear.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator).double())
        self._several = several

    def forward(self, given: Tensors) -> Tensors:
        if not self._several:
            return torch.tanh(self.linear(given))
        if isinstance(given, tuple):
            hidden, scale, order = given
        else:
            hidden, scale = given, 1 + self.linear.bias.mean().float().view(1)
            order = torch.arange(given.size(0)).flip(0)
        hidden = torch.tanh(self.linear(hidden[order])) * scale
        return hidden, scale * 0.5, order.roll(1)


def make_stages(num_stages: int, *, several: bool = False) -> list[Stage]:
    generator = torch.Generator().manual_seed(7)
    return [Stage(generator, several=several) for _ in range(num_stages)]


def make_data(num_microbatches: int, *, ragged: bool = False) -> list[torch.Tensor]:
    """Inputs of the microbatches; if ragged, of different lengths."""
    generator = torch.Generator().manual_seed(11)
    rows = [ROWS + ragged * (m * 5 % 4) for m in range(num_microbatches)]
    return [torch.randn(r, WIDTH, generator=generator).double() for r in rows]


def loss_of(output: Tensors) -> torch.Tensor:
    return sum(tensor.double().square().sum() for tensor in parts(output)[:2])


class ModuleWorker:
    """Runs plain modules; frees outputs as Megatron does and counts what is synchronised.

    ``delay`` in seconds makes every action slow.
    """

    def __init__(
        self,
        stages: list[Stage],
        schedule: Schedule,
        *,
        ragged: bool = False,
        delay: float = 0.0,
    ) -> None:
        self._stages = stages
        self._placement = schedule.placement
        self._data = make_data(schedule.num_microbatches, ragged=ragged)
        self._delay = delay
        self._weights_left: dict[tuple[int, int], tuple[list, list]] = {}
        self.losses: dict[int, float] = {}
        self.synchronised: list[int] = []

    def forward(self, stage, microbatch, input_tensor):
        time.sleep(self._delay)
        first = self._placement.is_first(stage)
        output = self._stages[stage](self._data[microbatch] if first else input_tensor)
        if self._placement.is_last(stage):
            output = loss_of(output)
            self.losses[microbatch] = output.item()
        return output

    def backward(self, stage, microbatch, *, input_tensor, output, output_gradient):
        time.sleep(self._delay)
        self._run_backward(*self._roots(stage, output, output_gradient))
        return gradients_of(input_tensor)

    def backward_input(self, stage, microbatch, *, input_tensor, output, output_gradient):
        time.sleep(self._delay)
        roots = self._roots(stage, output, output_gradient)
        self._weights_left[stage, microbatch] = roots
        if input_tensor is not None:
            leaves = [t for t in parts(input_tensor) if t.requires_grad]
            self._run_backward(*roots, leaves=leaves, keep_graph=True)
        return gradients_of(input_tensor)

    def backward_weight(self, stage, microbatch):
        time.sleep(self._delay)
        roots = self._weights_left.pop((stage, microbatch))
        self._run_backward(*roots, leaves=list(self._stages[stage].parameters()))

    def _roots(self, stage, output, output_gradient):
        if output_gradient is None:
            return [output], [torch.ones_like(output)]
        roots = [tensor for tensor in parts(output) if tensor.requires_grad]
        assert all(tensor.numel() == 1 for tensor in roots), f"stage {stage} was not freed"
        return roots, list(parts(output_gradient))

    def _run_backward(self, roots, gradients, *, leaves=(), keep_graph=False):
        torch.autograd.Variable._execution_engine.run_backward(
            tuple(roots),
            tuple(gradients),
            keep_graph,
            False,
            tuple(leaves),
            allow_unreachable=True,
            accumulate_grad=True,
        )

    def specs_of(self, transfer: Transfer):
        return TensorSpec((ROWS, WIDTH), torch.float64)

    def free(self, output):
        for tensor in parts(output):
            tensor.data = tensor.new_empty((1,))

    def sync_gradients(self, stage):
        self.synchronised.append(stage)


class PoisonedBuffers(ReceiveBuffers):
    """Full of NaN, so that nothing can be read before it has come, or once its memory is reused."""

    def __init__(self):
        super().__init__("cpu")

    def take(self, specs):
        tensors = super().take(specs)
        for tensor in parts(tensors):
            tensor.fill_(torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)
        return tensors


def gradients_of(inputs: Tensors | None) -> Tensors | None:
    if not isinstance(inputs, tuple):
        return None if inputs is None else inputs.grad
    return tuple(tensor.grad for tensor in inputs if tensor.requires_grad)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How a pipeline is run.

    Args:
        communicators: of the strict transport, ``pair`` or ``group``.
        several: stages hand on tuples of tensors with several dtypes.
        ragged: microbatches have different lengths.
        announced: shapes travel ahead of the data; needed for the two above.
        checked: debug mode.
        straggler: a rank whose actions are slow.
    """

    communicators: str = "pair"
    several: bool = False
    ragged: bool = False
    announced: bool = False
    checked: bool = False
    straggler: int | None = None

    def lists(self, schedule: Schedule) -> LoweredSchedule:
        lowered = lower_with_least_buffers(schedule)
        if self.announced:
            lowered = announce_shapes(lowered, Communicator(self.communicators))
        return lowered

    def messenger(self, transport):
        if self.checked:
            transport = CheckedTransport(transport, step=1)
        return Messenger(transport, PoisonedBuffers())


class Outcome(NamedTuple):
    """Gradients in the order of stages, losses by microbatch, then each rank's worker and stats."""

    gradients: list[torch.Tensor]
    losses: dict[int, float]
    workers: list[ModuleWorker]
    stats: list[ExecutionStats]


def run_reference(
    schedule: Schedule, *, several: bool = False, ragged: bool = False
) -> tuple[list[torch.Tensor], dict[int, float]]:
    """Gradients per parameter and losses per microbatch, by torch on one rank."""
    placement = schedule.placement
    stages = make_stages(placement.num_stages, several=several)
    data = make_data(schedule.num_microbatches, ragged=ragged)
    losses = {}
    for replica, microbatches in enumerate(schedule.microbatches_of_replica):
        first = replica * placement.model_stages
        model = torch.nn.Sequential(*stages[first : first + placement.model_stages])
        for microbatch in microbatches:
            loss = loss_of(model(data[microbatch]))
            loss.backward()
            losses[microbatch] = loss.item()
    return _gradients(stages), losses


def run_pipeline(schedule: Schedule, conditions: Conditions | None = None) -> Outcome:
    """The same by the executor, one thread a rank, on the strict transport."""
    how = conditions or Conditions()
    stages = make_stages(schedule.placement.num_stages, several=how.several)
    lowered = how.lists(schedule)
    workers = [
        ModuleWorker(
            stages, schedule, ragged=how.ragged, delay=0.002 if rank == how.straggler else 0.0
        )
        for rank in range(len(lowered.programs))
    ]

    def work(rank, transport):
        executor = Executor(
            lowered,
            rank=rank,
            worker=workers[rank],
            messenger=how.messenger(transport),
        )
        executor.run()
        return executor.stats

    stats = StrictNetwork(schedule.placement.num_ranks, how.communicators).run(work)
    losses = {m: loss for worker in workers for m, loss in worker.losses.items()}
    return Outcome(_gradients(stages), losses, workers, stats)


def _gradients(stages: list[Stage]) -> list[torch.Tensor]:
    """Of a replica that got no microbatch: zeros."""
    parameters = [p for stage in stages for p in stage.parameters()]
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]

"""Receive buffers are reused when nothing refers to them, and never more than were in use."""

import pytest
import torch
from pipeline_model import Conditions, ModuleWorker, PoisonedBuffers, make_stages

from hanayo_megatron.lowering.operation import Compute, Exchange
from hanayo_megatron.runtime.executor import Executor
from hanayo_megatron.runtime.messenger import Messenger
from hanayo_megatron.runtime.receive_buffers import ReceiveBuffers
from hanayo_megatron.runtime.strict_transport import StrictNetwork
from hanayo_megatron.runtime.tensors import TensorSpec
from hanayo_megatron.schedule import Kind, ScheduleSpec, build_schedule

SPEC = TensorSpec((2, 3), torch.float32)


def test_memory_is_reused_once_it_is_idle():
    buffers = ReceiveBuffers("cpu")
    first = buffers.take(SPEC)
    second = buffers.take(SPEC)
    assert first.data_ptr() != second.data_ptr()
    assert (first.shape, first.dtype, first.is_contiguous()) == ((2, 3), torch.float32, True)
    place = first.data_ptr()
    del first
    third = buffers.take(SPEC)
    assert third.data_ptr() == place
    assert len(buffers) == 2


def test_views_graphs_and_gradients_keep_memory():
    buffers = ReceiveBuffers("cpu")
    view = buffers.take(SPEC).view(6)[2:3]
    weight = torch.ones(3, 3, requires_grad=True)
    in_graph = buffers.take(SPEC).fill_(2) @ weight
    gradient = buffers.take(SPEC).fill_(1)
    leaf = torch.zeros(2, 3, requires_grad=True)
    leaf.view(2, 3).backward(gradient)  # the gradient may share its memory
    del gradient
    others = [buffers.take(SPEC).fill_(7) for _ in range(3)]
    in_graph.sum().backward()
    assert torch.equal(weight.grad, torch.full((3, 3), 4.0))
    assert torch.equal(leaf.grad, torch.ones(2, 3))
    assert not any(other.data_ptr() <= view.data_ptr() < other.data_ptr() + 24 for other in others)
    del view, in_graph, others
    assert buffers.take(SPEC) is not None
    assert len(buffers) <= 6


def test_tuples_and_empty_tensors():
    buffers = ReceiveBuffers("cpu")
    one, two = buffers.take((SPEC, TensorSpec((0, 4), torch.int64)))
    assert (one.shape, two.shape, two.dtype) == ((2, 3), (0, 4), torch.int64)


def test_changing_shapes_take_no_more_memory_than_was_in_use():
    buffers = ReceiveBuffers("cpu")
    for length in range(1, 50):
        first = buffers.take(TensorSpec((length, 2), torch.float32))
        second = buffers.take(TensorSpec((length, 3), torch.float32))
        assert first.data_ptr() != second.data_ptr()
        assert len(buffers) <= 4  # the two of the last round are given up one by one
    del first, second
    buffers.take(SPEC)
    assert len(buffers) <= 4


CASES = [
    (name, pp, waves)
    for name in ("1f1b", "gpipe", "hanayo", "interleaved", "chimera", "breadth-first")
    for pp, waves in ((2, 1), (4, 1), (4, 2))
]


@pytest.mark.parametrize(("name", "pp", "waves"), CASES)
def test_buffers_made_are_those_in_use_at_the_peak(name, pp, waves):
    """In use: posted, or input of a stage whose backward is to come; not one a microbatch."""
    spec = ScheduleSpec(pp=pp, microbatches=12, waves=waves, chunks=waves)
    schedule = build_schedule(name, spec)
    lowered = Conditions().lists(schedule)
    stages = make_stages(schedule.placement.num_stages)
    pools = [PoisonedBuffers() for _ in range(pp)]

    def work(rank, transport):
        worker = ModuleWorker(stages, schedule)
        messenger = Messenger(transport, pools[rank])
        Executor(lowered, rank=rank, worker=worker, messenger=messenger).run()

    StrictNetwork(pp).run(work)
    assert [len(pool) for pool in pools] == [
        peak_in_use(program, schedule.placement) for program in lowered.programs
    ]


def peak_in_use(program, placement):
    """An activation is held to the end of its backward, a gradient while it is read."""
    held, peak = set(), 0
    for operation in program:
        if isinstance(operation, Exchange):
            held |= {(t.kind, t.target_stage, t.microbatch) for t in operation.receives}
            peak = max(peak, len(held))
        elif isinstance(operation, Compute) and operation.action.kind is Kind.B:
            stage, _, microbatch = operation.action
            held -= {(Kind.F, stage, microbatch), (Kind.B, stage, microbatch)}
    return peak

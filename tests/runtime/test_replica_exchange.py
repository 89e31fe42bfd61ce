"""Gradients of two copies are summed in one order on mirror ranks, whichever copy ends first."""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from pipeline_model import ModuleWorker, PoisonedBuffers, make_stages, run_reference

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.megatron.replica_gradients import ReplicaGradientSync
from hanayo_megatron.runtime.executor import Executor
from hanayo_megatron.runtime.messenger import Messenger
from hanayo_megatron.runtime.strict_transport import StrictNetwork
from hanayo_megatron.runtime.transport import Parcel, TransportError
from hanayo_megatron.schedule import ScheduleSpec, build_schedule
from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.simulate.prefetch import lower_with_least_buffers

CASES = [
    (name, pp, microbatches)
    for name in ("chimera", "chimera-doubling")
    for pp in (2, 4, 8)
    for microbatches in (1, 2, 3, 5, 8, 17)
]


class Chunk:
    """A stage whose gradients are exchanged with the mirror, as DDP's are over a joined group."""

    def __init__(self, stage, placement, stages, transport):
        self.stage = stage
        self._rank = placement.rank_of[stage]
        self._mirror = placement.num_ranks - 1 - self._rank
        self._piece = placement.model_stage_of(stage)
        self._parameters = list(stages[stage].parameters())
        self._transport = transport
        self._handles = None

    def start_grad_sync(self):
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        mine = torch.cat([p.grad.flatten() for p in self._parameters])
        self._theirs = torch.empty_like(mine)
        here, there = self._transfer(self._rank), self._transfer(self._mirror)
        self._handles = self._transport.exchange(
            self._mirror, sends=[Parcel(here, mine)], receives=[Parcel(there, self._theirs)]
        )
        self._mine = mine

    def finish_grad_sync(self):
        for handle in self._handles:
            handle.wait()
        return self._mine + self._theirs

    def _transfer(self, source):
        target = self._rank + self._mirror - source
        return Transfer(Kind.W, 0, self._piece, self._piece, source, target)


class FirstReplicaFirst(ReplicaGradientSync):
    """What a fixed order of replicas does: mirror ranks start different pieces."""

    def __init__(self, config, model, placement):
        super().__init__(config, model)
        self._waiting.sort(key=lambda chunk: placement.replica_of(model[chunk].stage))


def train(name, pp, microbatches, make_sync, communicators="pair"):
    """Summed gradients of every piece of the model, by rank and piece."""
    schedule = build_schedule(name, ScheduleSpec(pp=pp, microbatches=microbatches))
    placement, lowered = schedule.placement, lower_with_least_buffers(schedule)
    model = make_stages(placement.model_stages)
    stages = [*model, *make_stages(placement.model_stages)]
    network = StrictNetwork(pp, communicators)

    @contextmanager
    def no_sync():
        yield

    def work(rank, transport):
        gradients = network.transport(rank, "gradients")
        chunks = [Chunk(s, placement, stages, gradients) for s in placement.stages_of[rank]]
        config = SimpleNamespace(no_sync_func=[no_sync for _ in chunks])
        worker = ModuleWorker(stages, schedule)
        with make_sync(config, chunks, placement) as sync:
            worker.sync_gradients = lambda stage: sync.after_last_backward(
                placement.chunk_of[stage]
            )
            messenger = Messenger(transport, PoisonedBuffers())
            Executor(lowered, rank=rank, worker=worker, messenger=messenger).run()
        return [chunk.finish_grad_sync() for chunk in chunks], worker.losses

    results = network.run(work)
    pieces = {
        (rank, placement.model_stage_of(stage)): gradient
        for rank, (gradients, _) in enumerate(results)
        for stage, gradient in zip(placement.stages_of[rank], gradients, strict=True)
    }
    return pieces, {m: loss for _, losses in results for m, loss in losses.items()}, placement


def ours(config, chunks, placement):
    return ReplicaGradientSync(config, chunks)


@pytest.mark.parametrize("communicators", ["pair", "group"])
@pytest.mark.parametrize(("name", "pp", "microbatches"), CASES)
def test_copies_get_the_sum_of_one_model(name, pp, microbatches, communicators):
    pieces, losses, placement = train(name, pp, microbatches, ours, communicators)
    plain = build_schedule("1f1b", ScheduleSpec(pp=pp, microbatches=microbatches))
    gradients, expected_losses = run_reference(plain)
    assert {m: losses[m] for m in sorted(losses)} == expected_losses
    for piece in range(placement.model_stages):
        holders = [rank for rank, held in pieces if held == piece]
        assert len(holders) == 2
        for rank in holders:
            expected = torch.cat([g.flatten() for g in gradients[2 * piece : 2 * piece + 2]])
            torch.testing.assert_close(pieces[rank, piece], expected, rtol=1e-12, atol=1e-13)
        assert torch.equal(pieces[holders[0], piece], pieces[holders[1], piece])


@pytest.mark.parametrize("pp", [2, 4])
def test_an_order_by_replica_does_not_match_on_mirror_ranks(pp):
    with pytest.raises(TransportError):
        train("chimera", pp, 4, FirstReplicaFirst)


def starts_before_end(order, placement):
    """How many actions a rank has left when it starts the sum of each chunk, in order of start."""
    chunks = [SimpleNamespace() for _ in range(2)]
    started = {}
    left = [a.stage for a in order if a.kind is Kind.B]
    with ReplicaGradientSync(SimpleNamespace(no_sync_func=[]), chunks) as sync:
        for position, action in enumerate(order):
            for index, chunk in enumerate(chunks):
                chunk.start_grad_sync = partial(
                    started.setdefault, index, len(order) - 1 - position
                )
            if action.kind is Kind.B:
                left.remove(action.stage)
                if action.stage not in left:
                    sync.after_last_backward(placement.chunk_of[action.stage])
    return started


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 2), (4, 4), (4, 9), (8, 8)])
def test_the_deeper_piece_starts_before_the_rank_is_done(pp, microbatches):
    """The eager rule: what has work left to hide behind starts at once, the rest at the end."""
    schedule = build_schedule("chimera", ScheduleSpec(pp=pp, microbatches=microbatches))
    hidden = []
    for order in schedule.orders:
        started = starts_before_end(order, schedule.placement)
        assert list(started) == [1, 0], "not the deeper piece first"
        assert started[0] == 0
        hidden.append(started[1] > 0)
    # With a microbatch more on one copy, the ranks where it ends late have nothing left to do.
    assert all(hidden) if microbatches % 2 == 0 else any(hidden)

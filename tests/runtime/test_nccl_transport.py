"""What the NCCL transport asks of torch.distributed, recorded by stand-ins: no GPU was used."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from hanayo_megatron.lowering.operation import Compute, Exchange, Free, Transfer
from hanayo_megatron.runtime import communicators
from hanayo_megatron.runtime.communicators import communicating_pairs, connect_pairs
from hanayo_megatron.runtime.torch_transport import NcclTransport
from hanayo_megatron.runtime.transport import Parcel
from hanayo_megatron.schedule import Kind, ScheduleSpec, build_schedule
from hanayo_megatron.schedule.placement import bidirectional, linear, looped, wave
from hanayo_megatron.simulate.prefetch import lower_with_least_buffers


class Group:
    def __init__(self, ranks, rank):
        self.ranks, self._rank = ranks, rank

    def rank(self):
        return self.ranks.index(self._rank)

    def size(self):
        return len(self.ranks)


@pytest.fixture
def recorded(monkeypatch):
    """The batches that were posted, as (group's ranks, [(send or receive, peer's global rank)])."""
    batches = []

    def post(operations):
        assert operations
        (group,) = {id(o.group): o.group for o in operations}.values()
        names = {dist.isend: "send", dist.irecv: "receive"}
        batches.append((group.ranks, [(names[o.op], group.ranks[o.peer]) for o in operations]))
        return [SimpleNamespace(wait=lambda: None)]

    monkeypatch.setattr(
        dist,
        "P2POp",
        lambda op, tensor, *, group, group_peer: SimpleNamespace(
            op=op, tensor=tensor, group=group, peer=group_peer
        ),
    )
    monkeypatch.setattr(dist, "batch_isend_irecv", post)
    return batches


@pytest.mark.parametrize(
    ("placement", "pairs"),
    [
        (linear(4), [(0, 1), (1, 2), (2, 3)]),
        (wave(4, 2), [(0, 1), (1, 2), (2, 3)]),
        (looped(4, 2), [(0, 1), (0, 3), (1, 2), (2, 3)]),
        (bidirectional(4), [(0, 1), (1, 2), (2, 3)]),
        (wave(2, 3), [(0, 1)]),
    ],
)
def test_pairs_that_exchange_tensors(placement, pairs):
    assert communicating_pairs(placement) == pairs


def test_groups_are_made_in_one_order_and_warmed_up(recorded, monkeypatch):
    made = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(dist, "get_global_rank", lambda group, member: group.ranks[member])
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: made.append(group.ranks))
    monkeypatch.setattr(communicators, "timeout_of", lambda group: f"as {group.ranks}")
    orders, timeouts = [], []
    for rank in (10, 11, 12, 13):
        pipeline = Group([10, 11, 12, 13], rank)
        monkeypatch.setattr(
            communicators.dist,
            "new_group",
            lambda ranks, use_local_synchronization, timeout, rank=rank: (
                timeouts.append(timeout) or Group(ranks, rank)
            ),
        )
        made.clear()
        found = connect_pairs(pipeline, looped(4, 2))
        assert sorted(found) == sorted({(pipeline.rank() + 1) % 4, (pipeline.rank() - 1) % 4})
        assert all(
            group.ranks[1 - group.rank()] == pipeline.ranks[peer] for peer, group in found.items()
        )
        orders.append([tuple(ranks) for ranks in made])
    assert orders[0] == [(10, 11), (10, 13)]
    assert all(order == sorted(order) for order in orders)
    assert set(timeouts) == {"as [10, 11, 12, 13]"}
    assert len(recorded) == 8, "every rank warms up each of its two communicators"


@pytest.mark.parametrize("with_pairs", [False, True])
def test_both_ranks_post_the_same_groups_in_the_same_order(recorded, with_pairs):
    """Each rank's program through its own transport; then compared pair by pair."""
    schedule = build_schedule("hanayo", ScheduleSpec(pp=4, microbatches=4, waves=2))
    ranks = [4, 5, 6, 7]
    posted = []
    for rank, program in enumerate(lower_with_least_buffers(schedule).programs):
        pairs = None
        if with_pairs:
            peers = {o.peer for o in program if isinstance(o, Exchange)}
            pairs = {p: Group(sorted((ranks[rank], ranks[p])), ranks[rank]) for p in peers}
        transport = NcclTransport(Group(ranks, ranks[rank]), pairs)
        recorded.clear()
        for operation in program:
            if isinstance(operation, Exchange):
                sends = [Parcel(t, torch.empty(1)) for t in operation.sends]
                receives = [Parcel(t, torch.empty(1)) for t in operation.receives]
                handles = transport.exchange(operation.peer, sends=sends, receives=receives)
                assert len(handles) == len(sends) + len(receives)
        posted.append(list(recorded))
    opposite = {"send": "receive", "receive": "send"}
    for low, high in pairwise(range(4)):
        mine = [o for _, o in posted[low] if o[0][1] == ranks[high]]
        theirs = [o for _, o in posted[high] if o[0][1] == ranks[low]]
        mirrored = [sorted((opposite[what], ranks[high]) for what, _ in batch) for batch in theirs]
        assert [sorted(batch) for batch in mine] == mirrored
        assert mine
    expected = 2 if with_pairs else 4
    assert all(len(group) == expected for batches in posted for group, _ in batches)


def test_buffers_are_kept_until_their_transfer_was_waited_for():
    """The rule that the allocator's safety rests on, in the action lists of the library."""
    for name in ("1f1b", "hanayo", "interleaved", "chimera"):
        schedule = build_schedule(name, ScheduleSpec(pp=4, microbatches=8, waves=2))
        for program in lower_with_least_buffers(schedule).programs:
            sent: list[Transfer] = []
            for operation in program:
                if isinstance(operation, Exchange):
                    sent += operation.sends
                elif isinstance(operation, Free):
                    sent.remove(operation.transfer)
                elif isinstance(operation, Compute) and operation.action.kind is Kind.B:
                    own = (Kind.F, operation.action.stage, operation.action.microbatch)
                    assert own not in [(t.kind, t.source_stage, t.microbatch) for t in sent]
            assert not sent

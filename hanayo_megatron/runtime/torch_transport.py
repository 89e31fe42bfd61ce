"""Transports on torch.distributed process groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.runtime.transport import MAX_PARTS, Handle, Parcel, Transport
from hanayo_megatron.schedule.action import Kind


def transport_for(
    group: dist.ProcessGroup,
    *,
    num_stages: int,
    pairs: Mapping[int, dist.ProcessGroup] | None = None,
) -> Transport:
    """The transport that fits the backend of a pipeline-parallel group.

    Args:
        group: all ranks of the pipeline.
        num_stages: over all replicas.
        pairs: for NCCL, a group of two for each peer of this rank; None: ``group`` serves all.
    """
    if dist.get_backend(group) == dist.Backend.NCCL:
        return NcclTransport(group, pairs)
    return GlooTransport(group, num_stages=num_stages)


class GlooTransport:
    """Tagged sends and receives, one handle each.

    gloo matches by tag, so the identity of a transfer is its tag and messages cannot be confused.
    """

    def __init__(self, group: dist.ProcessGroup, *, num_stages: int) -> None:
        self._group = group
        self._num_stages = num_stages

    def exchange(
        self, peer: int, *, sends: Sequence[Parcel], receives: Sequence[Parcel]
    ) -> list[Handle]:
        posted = [
            dist.isend(tensor, group=self._group, group_dst=peer, tag=self._tag(transfer, part))
            for transfer, tensor, part in sends
        ]
        posted += [
            dist.irecv(tensor, group=self._group, group_src=peer, tag=self._tag(transfer, part))
            for transfer, tensor, part in receives
        ]
        return posted

    def _tag(self, transfer: Transfer, part: int) -> int:
        direction = transfer.kind is Kind.F
        message = (transfer.microbatch * self._num_stages + transfer.target_stage) * 2 + direction
        return message * MAX_PARTS + part


class NcclTransport:
    """One batched group of sends and receives per exchange. Never run on a GPU so far.

    NCCL wants both ranks to post the same groups in the same order on a communicator; the action
    lists see to that for one communicator per pair of ranks as well as for one for all. With pairs,
    the default, each has its own stream, so transfers with a slow neighbour hold up none with the
    other one; a rank has few peers (two on linear and wave placements), so few more buffers of
    NCCL. With one for all, a rank's transfers run one after another.

    Waiting makes the current stream wait for the transfer's event, never the host. NCCL starts a
    transfer behind what the current stream holds at the time it is posted, so a buffer just
    allocated there may be received into. The executor drops a buffer only behind its wait, on the
    same stream, so the allocator cannot give its memory away while NCCL works on it.

    Args:
        group: all ranks of the pipeline.
        pairs: by peer, groups of this rank and the peer; None: ``group`` serves all peers.
    """

    def __init__(
        self, group: dist.ProcessGroup, pairs: Mapping[int, dist.ProcessGroup] | None = None
    ) -> None:
        self._group = group
        self._pairs = pairs

    def exchange(
        self, peer: int, *, sends: Sequence[Parcel], receives: Sequence[Parcel]
    ) -> list[Handle]:
        group, peer_there = self._group, peer
        if self._pairs is not None:
            group = self._pairs[peer]
            peer_there = 1 - group.rank()
        operations = [
            dist.P2POp(operation, tensor, group=group, group_peer=peer_there)
            for operation, parcels in ((dist.isend, sends), (dist.irecv, receives))
            for _, tensor, _ in parcels
        ]
        works = dist.batch_isend_irecv(operations)
        if len(works) == 1:  # NCCL makes one work of a batch
            works *= len(operations)
        return works

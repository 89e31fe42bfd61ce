"""Transports on torch.distributed process groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.runtime.transport import MAX_PARTS, Handle, Parcel, Transport
from hanayo_megatron.schedule.action import Kind


def transport_for(group: dist.ProcessGroup, *, num_stages: int) -> Transport:
    """The transport that fits the backend of a pipeline-parallel group."""
    if dist.get_backend(group) == dist.Backend.NCCL:
        return NcclTransport(group)
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
    """One batched group of sends and receives per exchange.

    The posting order is the same on both sides, which is all that NCCL asks for. Waiting makes the
    compute stream wait, never the host; the executor keeps every buffer until its handle was
    waited for, so no memory is reused while NCCL works on it.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def exchange(
        self, peer: int, *, sends: Sequence[Parcel], receives: Sequence[Parcel]
    ) -> list[Handle]:
        operations = [
            dist.P2POp(dist.isend, tensor, group=self._group, group_peer=peer)
            for _, tensor, _ in sends
        ]
        operations += [
            dist.P2POp(dist.irecv, tensor, group=self._group, group_peer=peer)
            for _, tensor, _ in receives
        ]
        works = dist.batch_isend_irecv(operations)
        if len(works) == 1:  # NCCL coalesces a batch into one work
            works *= len(operations)
        return works

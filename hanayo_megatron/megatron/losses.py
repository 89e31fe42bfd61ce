"""Brings what the last stages collected to the rank on which Megatron logs."""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from hanayo_megatron.megatron.host_network import hosts_of

_DIGEST_BYTES = 16
_REMEMBERED = 8


class Outlines:
    """Pickled structures of losses that went from one rank to another lately, by digest.

    The same few come step after step: they are sent once, afterwards the digest is enough. Both
    ranks remember and forget the same ones, as they see them in one order.
    """

    def __init__(self) -> None:
        self._of_pair: dict[tuple[int, int], OrderedDict[bytes, bytes]] = defaultdict(OrderedDict)

    def __len__(self) -> int:
        return sum(map(len, self._of_pair.values()))

    def find(self, pair: tuple[int, int], digest: bytes) -> bytes | None:
        """What the pair, source and target, remembers."""
        known = self._of_pair[pair]
        if digest in known:
            known.move_to_end(digest)
        return known.get(digest)

    def keep(self, pair: tuple[int, int], digest: bytes, pickled: bytes) -> None:
        """Remember a structure in place of the one that was not used for longest."""
        known = self._of_pair[pair]
        known[digest] = pickled
        if len(known) > _REMEMBERED:
            known.popitem(last=False)


def collect_on_rank(
    collected: dict[int, list],
    *,
    sources: Sequence[int],
    target: int,
    group: dist.ProcessGroup,
    outlines: Outlines,
) -> list:
    """Join what the ranks with a last stage collected by microbatch.

    Returns the items in the order of microbatches on ``target``, an empty list on other ranks.
    """
    if group.rank() not in (*sources, target):
        return []
    found = dict(collected)
    for source in sources:
        if source != target:
            moved = move_to_rank(
                [collected], source=source, target=target, group=group, outlines=outlines
            )
            for part in moved:
                found |= part
    if group.rank() != target:
        return []
    return [item for _, items in sorted(found.items()) for item in items]


def move_to_rank(
    values: list, *, source: int, target: int, group: dist.ProcessGroup, outlines: Outlines
) -> list:
    """Move a list of (nested) losses from one rank of the pipeline to another.

    Structure and shapes go over the network of the hosts, so nothing waits for a GPU; the tensors
    follow in one message a dtype. Returns the list on ``target`` and an empty list on every other
    rank. Tensors keep their type and arrive on the receiver's own device.
    """
    rank = group.rank()
    if source == target:
        return values if rank == target else []
    if rank == source:
        device = torch.cuda.current_device()
        tensors: list[torch.Tensor] = []
        outline = _outline(values, tensors)
        _send_outline(outline, target=target, group=hosts_of(group), outlines=outlines)
        for same_dtype in _by_dtype(tensors).values():
            packed = torch.cat([tensor.reshape(-1).to(device) for tensor in same_dtype])
            dist.send(packed, group=group, group_dst=target)
        return []
    if rank == target:
        outline = _receive_outline(source=source, group=hosts_of(group), outlines=outlines)
        holes: list[_Hole] = []
        _find_holes(outline, holes)
        return _filled(outline, iter(_receive_tensors(holes, source=source, group=group)))
    return []


class _Hole(tuple):
    """Shape and dtype of a tensor that is sent beside the outline."""


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return _Hole((tuple(value.shape), value.dtype))
    if isinstance(value, dict):
        return {key: _outline(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return _like(value, [_outline(item, tensors) for item in value])
    return value


def _find_holes(outline: Any, holes: list[_Hole]) -> None:
    if isinstance(outline, _Hole):
        holes.append(outline)
    elif isinstance(outline, dict):
        for item in outline.values():
            _find_holes(item, holes)
    elif isinstance(outline, (list, tuple)):
        for item in outline:
            _find_holes(item, holes)


def _filled(outline: Any, tensors: Any) -> Any:
    if isinstance(outline, _Hole):
        return next(tensors)
    if isinstance(outline, dict):
        return {key: _filled(item, tensors) for key, item in outline.items()}
    if isinstance(outline, (list, tuple)):
        return _like(outline, [_filled(item, tensors) for item in outline])
    return outline


def _like(sequence: list | tuple, items: list) -> list | tuple:
    """The items in a sequence of the same type, named tuples included."""
    kind = type(sequence)
    return kind(*items) if hasattr(sequence, "_fields") else kind(items)


def _by_dtype(tensors: list[torch.Tensor]) -> dict[torch.dtype, list[torch.Tensor]]:
    """In the order in which dtypes first occur: the order of the messages."""
    groups: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.dtype].append(tensor)
    return groups


def _receive_tensors(
    holes: list[_Hole], *, source: int, group: dist.ProcessGroup
) -> list[torch.Tensor]:
    """One tensor a hole, as views of one received message a dtype."""
    device = torch.cuda.current_device()
    sizes: dict[torch.dtype, int] = defaultdict(int)
    for shape, dtype in holes:
        sizes[dtype] += torch.Size(shape).numel()
    packed = {}
    for dtype, size in sizes.items():
        packed[dtype] = torch.empty(size, dtype=dtype, device=device)
        dist.recv(packed[dtype], group=group, group_src=source)
    used: dict[torch.dtype, int] = defaultdict(int)
    tensors = []
    for shape, dtype in holes:
        size = torch.Size(shape).numel()
        tensors.append(packed[dtype][used[dtype] : used[dtype] + size].view(shape))
        used[dtype] += size
    return tensors


def _send_outline(
    outline: Any, *, target: int, group: dist.ProcessGroup, outlines: Outlines
) -> None:
    pair = (group.rank(), target)
    pickled = pickle.dumps(outline)
    digest = hashlib.blake2b(pickled, digest_size=_DIGEST_BYTES).digest()
    dist.send(_bytes(digest), group=group, group_dst=target)
    if outlines.find(pair, digest) is not None:
        return
    outlines.keep(pair, digest, pickled)
    dist.send(torch.tensor([len(pickled)]), group=group, group_dst=target)
    dist.send(_bytes(pickled), group=group, group_dst=target)


def _receive_outline(*, source: int, group: dist.ProcessGroup, outlines: Outlines) -> Any:
    received = torch.empty(_DIGEST_BYTES, dtype=torch.uint8)
    dist.recv(received, group=group, group_src=source)
    pair, digest = (source, group.rank()), bytes(received.tolist())
    pickled = outlines.find(pair, digest)
    if pickled is None:
        length = torch.empty(1, dtype=torch.int64)
        dist.recv(length, group=group, group_src=source)
        content = torch.empty(length.item(), dtype=torch.uint8)
        dist.recv(content, group=group, group_src=source)
        pickled = bytes(content.tolist())
        outlines.keep(pair, digest, pickled)
    return pickle.loads(pickled)


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)

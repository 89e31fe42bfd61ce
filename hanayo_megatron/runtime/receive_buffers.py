"""Memory to receive into, used again and again within a step."""

from __future__ import annotations

import torch

from hanayo_megatron.runtime.tensors import Specs, Tensors, TensorSpec


class ReceiveBuffers:
    """Buffers by shape and dtype; one is idle when nothing else refers to its memory.

    References decide, not what the schedule says: a received tensor may live on in a graph, in a
    view, in a stage or in a transfer under way. What used an idle buffer was issued before the
    next receive into it, which starts behind that on the same stream.

    There are never more buffers than were in use at once: before one of another shape is made, an
    idle one is given up.

    Args:
        device: where the buffers are.
    """

    def __init__(self, device: torch.device | int | str) -> None:
        self.device = device
        self._buffers: list[tuple[TensorSpec, torch.UntypedStorage]] = []

    def __len__(self) -> int:
        """Buffers in use and idle."""
        return len(self._buffers)

    def take(self, specs: Specs) -> Tensors:
        """Uninitialised tensors like the specs."""
        if isinstance(specs, tuple):
            return tuple(map(self._take, specs))
        return self._take(specs)

    def _take(self, spec: TensorSpec) -> torch.Tensor:
        storage = self._idle(spec)
        if storage is None:
            self._give_up_an_idle_one()
            made = torch.empty(spec.shape, dtype=spec.dtype, device=self.device)
            storage = made.untyped_storage()
            self._buffers.append((spec, storage))
        tensor = torch.empty(0, dtype=spec.dtype, device=self.device)
        return tensor.set_(storage, 0, spec.shape)

    def _idle(self, spec: TensorSpec) -> torch.UntypedStorage | None:
        for kind, storage in self._buffers:
            if kind == spec and _is_idle(storage):
                return storage
        return None

    def _give_up_an_idle_one(self) -> None:
        for index, (_, storage) in enumerate(self._buffers):
            if _is_idle(storage):
                del self._buffers[index]
                return


def _is_idle(storage: torch.UntypedStorage) -> bool:
    # As torch's CUDA graph trees count; there is no public way to ask.
    return torch._C._storage_Use_Count(storage._cdata) == 1

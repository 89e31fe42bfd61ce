"""The pipeline that the flags ask for, and which of its stages is at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

from hanayo_megatron.lowering.announced import announce_shapes
from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.rendezvous import Communicator
from hanayo_megatron.schedule.forward_only import forward_only_schedule
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.schedule.registry import build_schedule
from hanayo_megatron.schedule.schedule import ScheduleError, ScheduleSpec
from hanayo_megatron.simulate.prefetch import lower_with_least_buffers


class Pipeline:
    """A schedule by name, with the action lists for every microbatch count that comes up.

    Megatron asks "is this the first or last stage?" in functions that know a rank only. While a
    stage is built or run it is the current one, and those functions answer for it.
    """

    def __init__(self, name: str, spec: ScheduleSpec) -> None:
        schedule = build_schedule(name, spec)
        if schedule.splits_backward:
            raise ScheduleError(
                f"schedule {name!r} splits the backward into input and weight parts; training "
                "under Megatron needs a joint backward so far. Simulate it, or choose another one"
            )
        self.name = name
        self.spec = spec
        self.placement: Placement = schedule.placement
        self.current_stage: int | None = None
        chunks = {len(stages) for stages in self.placement.stages_of}
        if len(chunks) != 1:
            counts = ", ".join(str(len(stages)) for stages in self.placement.stages_of)
            raise ScheduleError(
                f"schedule {name!r} puts {counts} stages on the ranks; Megatron needs the same "
                "number on every rank"
            )
        self.num_chunks = chunks.pop()
        _check_copies_mirror_each_other(name, self.placement)
        self.lowered = cache(self._lower)
        self.announced = cache(self._announce)

    def stage_of(self, rank: int, chunk: int | None) -> int:
        """Stage id of a rank's chunk; None is Megatron's way to say that there is only one."""
        return self.placement.stages_of[rank][chunk or 0]

    @contextmanager
    def at_work(self, stage: int) -> Iterator[None]:
        """While it lasts, Megatron's questions about first and last are about this stage."""
        outer, self.current_stage = self.current_stage, stage
        try:
            yield
        finally:
            self.current_stage = outer

    def _lower(self, num_microbatches: int, forward_only: bool) -> LoweredSchedule:
        if forward_only:
            schedule = forward_only_schedule(self.placement, num_microbatches)
            return lower_with_least_buffers(schedule, self.spec.costs)
        spec = replace(self.spec, microbatches=num_microbatches)
        schedule = build_schedule(self.name, spec)
        if schedule.placement != self.placement:
            raise ScheduleError(
                f"schedule {self.name!r} moves stages to other ranks when the number of "
                f"microbatches changes from {self.spec.microbatches} to {num_microbatches}; the "
                "model is built already. Keep the number, or use a schedule with a fixed placement"
            )
        return lower_with_least_buffers(schedule, self.spec.costs)

    def _announce(
        self, num_microbatches: int, forward_only: bool, communicator: Communicator
    ) -> LoweredSchedule:
        """The same with shapes sent ahead of their tensors."""
        return announce_shapes(self.lowered(num_microbatches, forward_only), communicator)


def _check_copies_mirror_each_other(name: str, placement: Placement) -> None:
    """Gradients of both copies are summed between ranks r and P-1-r."""
    if placement.replicas == 1:
        return
    pieces = [[placement.model_stage_of(s) for s in held] for held in placement.stages_of]
    mirrored = pieces == pieces[::-1] and len(pieces) % 2 == 0
    if placement.replicas > 2 or not mirrored:
        held = "; ".join(f"rank {r}: {p}" for r, p in enumerate(pieces))
        raise ScheduleError(
            f"schedule {name!r} has {placement.replicas} copies of the model and puts these pieces "
            f"of it on the ranks: {held}. Training needs two copies on an even number of ranks, "
            "where rank r and rank P-1-r hold the same pieces"
        )

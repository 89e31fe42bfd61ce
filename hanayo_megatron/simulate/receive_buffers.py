"""How many receive buffers each rank has in use, counted along its program.

A rank works through its program in order, so this depends on no time, as little as the peak of
live activations does: a runtime that counts at the same places gets the same figures.
"""

from __future__ import annotations

from hanayo_megatron.lowering.inputs import reads_transfer
from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.operation import Compute, Exchange


def peak_receive_buffers(lowered: LoweredSchedule) -> tuple[int, ...]:
    """Most receive buffers that each rank has in use at once.

    A buffer is taken when its Exchange is posted and given up by the compute that reads it: a
    gradient is done with then, an activation counts as its stage's live activation from there on.
    """
    reads = reads_transfer(lowered.schedule.placement)
    peaks = []
    for program in lowered.programs:
        taken = peak = 0
        for operation in program:
            kind_of_operation = type(operation)
            if kind_of_operation is Exchange:
                taken += len(operation.receives)
                if taken > peak:
                    peak = taken
            elif kind_of_operation is Compute:
                stage, kind, _ = operation.action
                taken -= reads[kind][stage]
        peaks.append(peak)
    return tuple(peaks)

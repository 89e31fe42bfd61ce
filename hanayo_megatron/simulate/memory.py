"""What each rank holds at most, counted along its program.

A rank works through its program in order, so neither peak depends on any time: a runtime that
counts at the same places gets the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from hanayo_megatron.lowering.inputs import reads_transfer
from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.operation import Compute, Exchange
from hanayo_megatron.schedule.action import Action, Kind


def peak_live_activations(order: Sequence[Action]) -> int:
    """Most (stage, microbatch) pairs of one rank whose activations are held at once.

    Held from the start of F to the end of B, or of W where the backward is split. An order without
    backwards (evaluation) holds none.
    """
    live = peak = 0
    for _, kind, _ in order:
        if kind is Kind.F:
            live += 1
            if live > peak:
                peak = live
        elif kind is not Kind.I:
            live -= 1
    is_forward_only = live == len(order)
    return 0 if is_forward_only else peak


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

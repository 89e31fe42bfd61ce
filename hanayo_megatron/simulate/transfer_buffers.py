"""How many tensors between ranks each rank holds, counted along its program.

A rank works through its program in order, so this depends on no time, as little as the peak of
live activations does: a runtime that counts at the same places gets the same figures.
"""

from __future__ import annotations

from typing import NamedTuple

from hanayo_megatron.lowering.inputs import makes_transfer, reads_transfer
from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.operation import Compute, Exchange, Free


class BufferPeaks(NamedTuple):
    """Most tensors of each kind that each rank holds at once.

    Args:
        receive: from the Exchange that receives to the compute that reads: a gradient is done with
            then, an activation counts as its stage's live activation from there on.
        send: from the compute that makes a tensor for another rank to its Free.
    """

    receive: tuple[int, ...]
    send: tuple[int, ...]


def peak_buffers(lowered: LoweredSchedule) -> BufferPeaks:
    """Count along every rank's program."""
    placement = lowered.schedule.placement
    reads, makes = reads_transfer(placement), makes_transfer(placement)
    receive_peaks, send_peaks = [], []
    for program in lowered.programs:
        received = sent = receive_peak = send_peak = 0
        for operation in program:
            kind_of_operation = type(operation)
            if kind_of_operation is Exchange:
                received += len(operation.receives)
                if received > receive_peak:
                    receive_peak = received
            elif kind_of_operation is Compute:
                stage, kind, _ = operation.action
                received -= reads[kind][stage]
                sent += makes[kind][stage]
                if sent > send_peak:
                    send_peak = sent
            elif kind_of_operation is Free:
                sent -= 1
        receive_peaks.append(receive_peak)
        send_peaks.append(send_peak)
    return BufferPeaks(tuple(receive_peaks), tuple(send_peaks))

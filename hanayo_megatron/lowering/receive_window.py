"""When a rank whose receive buffers are limited can receive which input."""

from __future__ import annotations

from hanayo_megatron.lowering.inputs import reads_transfer
from hanayo_megatron.lowering.plan import Plan
from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.schedule import Schedule


def window_openings(schedule: Schedule, plan: Plan, buffers: int) -> dict[Kind, list[int]]:
    """The time from which the F / B input of (stage, microbatch) has a buffer, by flat index.

    Buffers go to inputs in the order in which the rank reads them, whatever the order in which
    they are sent: the n-th input read may come once the rank has read the one ``buffers`` before
    it. So none takes the last buffer of one that is needed earlier, and the rank goes on for any
    number of buffers. Times are the plan's, in ticks. Raises ValueError without a buffer.
    """
    if buffers < 1:
        raise ValueError(f"a rank needs at least 1 receive buffer, got {buffers}")
    num_microbatches = schedule.num_microbatches
    size = schedule.placement.num_stages * num_microbatches
    openings = {Kind.F: [0] * size, Kind.B: [0] * size}
    reads = reads_transfer(schedule.placement)
    for order, ends in zip(schedule.orders, plan.ends, strict=True):
        read: list[int] = []  # when each input so far has been read
        for (stage, kind, microbatch), end in zip(order, ends, strict=True):
            if not reads[kind][stage]:
                continue
            if len(read) >= buffers:
                inputs = openings[Kind.F if kind is Kind.F else Kind.B]
                inputs[stage * num_microbatches + microbatch] = read[-buffers]
            read.append(end)
    return openings

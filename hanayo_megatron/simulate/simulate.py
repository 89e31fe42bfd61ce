"""Exact timing of a lowered schedule, transfers included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hanayo_megatron.lowering.deadlock import check_deadlock_free
from hanayo_megatron.lowering.inputs import reads_transfer
from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.operation import Compute, Exchange, Free
from hanayo_megatron.lowering.rendezvous import Communicator, Rendezvous
from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.collector import collector_paused
from hanayo_megatron.schedule.costs import Costs, Ticks
from hanayo_megatron.schedule.memory import peak_activations, stage_share
from hanayo_megatron.schedule.schedule import Schedule
from hanayo_megatron.simulate.transfer_buffers import peak_buffers


@dataclass(frozen=True)
class Simulation:
    """What one step costs. Times are in the unit of the costs; tuples are per rank.

    Args:
        makespan: from the start of the step to the end of the last operation of any rank.
        bubble_ratio: part of all ranks' makespan in which they do not compute.
        own_span_bubble_ratios: the same between the rank's own first and last compute.
        compute: time spent in computes.
        wait: the rest of the makespan.
        transfer: time that the rank's transfers take, overlapped with computes or not.
        peak_activations: most activations held, in M_a; see ``schedule.memory``.
        peak_receive_buffers, peak_send_buffers: see ``transfer_buffers``.
        weight_memory: weights held, in M_w.
        transfers: tensors moved between ranks.
        starts, ends: of each compute, in ticks, beside ``schedule.orders``.
        exchanges: of each transfer group, in ticks.
    """

    schedule: Schedule
    ticks: Ticks
    makespan: float
    bubble_ratio: float
    own_span_bubble_ratios: tuple[float, ...]
    compute: tuple[float, ...]
    wait: tuple[float, ...]
    transfer: tuple[float, ...]
    peak_activations: tuple[float, ...]
    peak_receive_buffers: tuple[int, ...]
    peak_send_buffers: tuple[int, ...]
    weight_memory: tuple[float, ...]
    transfers: int
    starts: tuple[list[int], ...]
    ends: tuple[list[int], ...]
    exchanges: list[TimedExchange]

    @property
    def own_span_bubble_ratio(self) -> float:
        """Of the rank where it is largest."""
        return max(self.own_span_bubble_ratios)


TimedExchange = tuple[int, int, int, Exchange]
"""Start and end in ticks, and the group as the given rank posted it: (start, end, rank, group)."""


def simulate(
    lowered: LoweredSchedule,
    costs: Costs | None = None,
    *,
    communicator: Communicator = Communicator.PAIR,
) -> Simulation:
    """Run the programs of all ranks on a clock.

    A rank has one compute stream that takes the program's operations in order. An Exchange is
    posted when the stream gets there and holds nothing up. A group of transfers starts when both
    ranks have posted it and all earlier groups on its communicator have ended (on both ranks, if
    one communicator serves all); it lasts as long as its slowest transfer. A Compute waits for the
    transfer that it reads, a Free for the transfer that it ends.

    Raises DeadlockError if a rank would wait for ever.
    """
    ticks = (costs or Costs()).ticks(lowered.schedule.placement)
    with collector_paused():
        starts, ends, finished, exchanges = _run(lowered, ticks, communicator)
    return _summary(
        lowered, ticks, starts=starts, ends=ends, makespan=max(finished), exchanges=exchanges
    )


def _run(
    lowered: LoweredSchedule, ticks: Ticks, communicator: Communicator
) -> tuple[tuple[list[int], ...], tuple[list[int], ...], list[int], list[TimedExchange]]:
    """Starts and ends of computes, the time each rank is done, all exchanges; in ticks."""
    schedule = lowered.schedule
    ranks = range(len(lowered.programs))
    num_microbatches = schedule.num_microbatches
    reads = reads_transfer(schedule.placement)
    durations, links = ticks.durations, ticks.links
    # End of the transfer of the F input / B input of (stage, microbatch), by flat index.
    size = schedule.placement.num_stages * num_microbatches
    arrivals: dict[Kind, list[int | None]] = {Kind.F: [None] * size, Kind.B: [None] * size}

    starts: tuple[list[int], ...] = tuple([] for _ in ranks)
    ends: tuple[list[int], ...] = tuple([] for _ in ranks)
    finished = [0 for _ in ranks]
    exchanges: list[TimedExchange] = []
    runnable = list(ranks)
    parked = [False for _ in ranks]

    def complete(rank: int, exchange: Exchange, start: int) -> int:
        """Carry out a group that may start; returns its end."""
        peer, sends, receives = exchange
        time = links[rank, peer] if sends else 0
        if receives:
            time = max(time, links[peer, rank])
        end = start + time
        for transfers in (sends, receives):
            for kind, microbatch, _, stage, _, _ in transfers:
                arrivals[kind][stage * num_microbatches + microbatch] = end
        exchanges.append((start, end, rank, exchange))
        for waiting in (rank, peer):
            if parked[waiting]:
                parked[waiting] = False
                runnable.append(waiting)
        return end

    rendezvous = Rendezvous(len(ranks), communicator, complete)
    post = rendezvous.post

    def stream(rank: int) -> Iterator[None]:
        """The rank's compute stream; pauses where it must wait for an unfinished transfer."""
        now = 0
        rank_starts, rank_ends = starts[rank], ends[rank]
        for operation in lowered.programs[rank]:
            what = type(operation)
            if what is Compute:
                stage, kind, microbatch = operation.action
                if reads[kind][stage]:
                    index = stage * num_microbatches + microbatch
                    inputs = arrivals[Kind.F if kind is Kind.F else Kind.B]
                    while (arrival := inputs[index]) is None:
                        yield
                    if arrival > now:
                        now = arrival
                rank_starts.append(now)
                now += durations[kind][stage]
                rank_ends.append(now)
            elif what is Exchange:
                post(rank, operation, now)
            elif what is Free:
                kind, microbatch, _, stage, _, _ = operation.transfer
                index = stage * num_microbatches + microbatch
                while (arrival := arrivals[kind][index]) is None:
                    yield
                if arrival > now:
                    now = arrival
        finished[rank] = now

    streams = [stream(rank) for rank in ranks]
    while runnable:
        rank = runnable.pop()
        parked[rank] = next(streams[rank], _DONE) is not _DONE

    if any(parked) or not rendezvous.is_empty():
        check_deadlock_free(lowered, communicator=communicator)
    return starts, ends, finished, exchanges


_DONE = object()


def _summary(
    lowered: LoweredSchedule,
    ticks: Ticks,
    *,
    starts: tuple[list[int], ...],
    ends: tuple[list[int], ...],
    makespan: int,
    exchanges: list[TimedExchange],
) -> Simulation:
    schedule = lowered.schedule
    placement = schedule.placement
    ranks = range(placement.num_ranks)
    compute = [sum(ends[r]) - sum(starts[r]) for r in ranks]
    spans = [ends[r][-1] - starts[r][0] if starts[r] else 0 for r in ranks]
    transfer = [0 for _ in ranks]
    transfers = 0
    for start, end, rank, exchange in exchanges:
        transfer[rank] += end - start
        transfer[exchange.peer] += end - start
        transfers += len(exchange.sends) + len(exchange.receives)
    share = stage_share(placement)
    buffers = peak_buffers(lowered)
    return Simulation(
        schedule=schedule,
        ticks=ticks,
        makespan=ticks.time(makespan),
        bubble_ratio=_idle_part(sum(compute), makespan * len(ranks)),
        own_span_bubble_ratios=tuple(map(_idle_part, compute, spans)),
        compute=tuple(map(ticks.time, compute)),
        wait=tuple(ticks.time(makespan - busy) for busy in compute),
        transfer=tuple(map(ticks.time, transfer)),
        peak_activations=tuple(peak_activations(schedule)),
        peak_receive_buffers=buffers.receive,
        peak_send_buffers=buffers.send,
        weight_memory=tuple(len(stages) * share for stages in placement.stages_of),
        transfers=transfers,
        starts=starts,
        ends=ends,
        exchanges=exchanges,
    )


def _idle_part(busy: int, total: int) -> float:
    return (total - busy) / total if total else 0.0

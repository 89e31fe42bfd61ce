"""An independent, slow simulator: what the tests of schedules measure with."""

from dataclasses import dataclass

from hanayo_megatron.schedule.action import Kind


@dataclass(frozen=True)
class Measure:
    makespan: float
    own_spans: list
    busy: list

    @property
    def own_span(self):
        return max(self.own_spans)

    @property
    def bubble(self):
        return 1 - sum(self.busy) / (len(self.busy) * self.makespan)


def measure(schedule, times, *, fused=None):
    """Run every rank's order as early as inputs allow; ``times``: kind -> time of one stage.

    With ``fused`` a forward directly followed by a joint backward is one piece of work of that
    time, which starts when both have their inputs and ends as a whole (DualPipe's overlapped F&B).
    """
    depth = schedule.placement.model_stages
    pieces = [_pieces(order, fused is not None) for order in schedule.orders]
    done = {}
    starts, ends, busy = ([[] for _ in pieces] for _ in range(3))
    progress = True
    while progress:
        progress = False
        for rank, queue in enumerate(pieces):
            while len(starts[rank]) < len(queue):
                piece = queue[len(starts[rank])]
                inputs = [i for action in piece for i in _inputs(action, depth) if i not in piece]
                if not all(i in done for i in inputs):
                    break
                start = max([done[i] for i in inputs] + ends[rank][-1:] + [0])
                duration = fused if len(piece) == 2 else times[piece[0].kind]
                starts[rank].append(start)
                ends[rank].append(start + duration)
                busy[rank].append(duration)
                for stage, kind, microbatch in piece:
                    done[stage, kind, microbatch] = start + duration
                    if kind is Kind.B:
                        done[stage, Kind.I, microbatch] = start + duration
                progress = True
    assert all(len(s) == len(q) for s, q in zip(starts, pieces, strict=True)), "orders wait"
    return Measure(
        makespan=max(e[-1] for e in ends if e),
        own_spans=[e[-1] - s[0] for s, e in zip(starts, ends, strict=True) if e],
        busy=[sum(b) for b in busy],
    )


def _pieces(order, fuse):
    pieces = []
    for action in order:
        if fuse and action.kind is Kind.B and pieces and pieces[-1][-1].kind is Kind.F:
            pieces[-1] += (action,)
        else:
            pieces.append((action,))
    return pieces


def _inputs(action, depth):
    stage, kind, microbatch = action
    if kind is Kind.F:
        return [(stage - 1, Kind.F, microbatch)] if stage % depth else []
    if kind is Kind.W:
        return [(stage, Kind.I, microbatch)]
    inputs = [(stage, Kind.F, microbatch)]
    if stage % depth != depth - 1:
        inputs.append((stage + 1, Kind.I, microbatch))
    return inputs


def stage_times(forward, backward_input, weight):
    return {
        Kind.F: forward,
        Kind.B: backward_input + weight,
        Kind.I: backward_input,
        Kind.W: weight,
    }

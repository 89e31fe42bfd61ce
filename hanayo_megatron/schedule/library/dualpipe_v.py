"""DualPipe-V: DualPipe cut in half, one copy on a V (DeepSeek-V3 report, 2024; DualPipe, 2025)."""

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.placement import wave
from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleError, ScheduleSpec


@register_schedule("dualpipe-v")
def dualpipe_v(spec: ScheduleSpec) -> Schedule:
    """Forward and backward of opposite directions side by side; any P, M >= 2P-1.

    V placement: rank r holds stages r and 2P-1-r. In the steady state every forward of one chunk
    stands before a backward of the other, so that the one's transfers hide behind the other's
    compute; some backwards are split at both ends. With F&B the time of such a pair, and times of
    one stage, a rank's bubble is at most (P-1)(F&B + B - 3W). Activations: at most (P+1/2)·M_a.
    """
    least = 2 * spec.pp - 1
    if spec.microbatches < least:
        raise ScheduleError(
            f"dualpipe-v with {spec.pp} ranks needs at least {least} microbatches (2·pp - 1) to "
            f"fill both directions; given {spec.microbatches}"
        )
    orders = tuple(_order(rank, spec.pp, spec.microbatches) for rank in range(spec.pp))
    return Schedule("dualpipe-v", wave(spec.pp, 1), spec.microbatches, orders)


def _order(rank: int, num_ranks: int, num_microbatches: int) -> tuple[Action, ...]:
    """Eight phases; "down" is the rank's first stage, "up" its second."""
    down, up = rank, 2 * num_ranks - 1 - rank
    above = num_ranks - 1 - rank  # ranks between this one and the turn
    order: list[Action] = []
    unweighted: list[Action] = []
    count = {(stage, kind): 0 for stage in (down, up) for kind in (Kind.F, Kind.B)}

    def forward(stage: int) -> None:
        order.append(Action(stage, Kind.F, count[stage, Kind.F]))
        count[stage, Kind.F] += 1

    def backward(stage: int, kind: Kind = Kind.B) -> None:
        action = Action(stage, kind, count[stage, Kind.B])
        count[stage, Kind.B] += 1
        order.append(action)
        if kind is Kind.I:
            unweighted.append(Action(stage, Kind.W, action.microbatch))

    def weight() -> None:
        order.append(unweighted.pop(0))

    for _ in range(2 * above):  # forwards down
        forward(down)
    for _ in range(rank + 1):  # forwards both ways
        forward(down)
        forward(up)
    for _ in range(above):  # first backwards, split: the next rank waits for the input gradient
        backward(up, Kind.I)
        weight()
        forward(up)
    for _ in range(num_microbatches - 2 * num_ranks + rank + 1):  # steady: F beside B, twice
        forward(down)
        backward(up)
        forward(up)
        backward(down)
    for _ in range(above):  # last forwards
        backward(up)
        forward(up)
        backward(down)
    split_from = rank + 1  # of the 2(rank+1) backwards that follow, the second half is split
    for number in range(2 * (rank + 1)):
        stage = down if number % 2 else up
        backward(stage, Kind.I if number >= split_from else Kind.B)
    for _ in range(above):
        weight()
        backward(down, Kind.I)
    while unweighted:
        weight()
    return tuple(order)

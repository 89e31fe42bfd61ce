"""Action lists for tensors whose shapes the receiver does not know.

Each Exchange has an Announce ahead of it, on the same communicator, and both keep to the one order
of all transfers: announcement k, data k, announcement k+1, ... A rank that only sends posts its
data at once. A rank that receives must wait for the shapes first, and puts that off until something
needs this transfer or a later one, or the next group the communicator. So before a rank waits for
transfer k it has posted the data of all groups up to k and waited for the shapes of no later one.
Of all the transfers that ranks wait for, the first one in the global order therefore always moves:
both ranks have posted its announcement, and neither waits for anything before they post its data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hanayo_megatron.lowering.inputs import input_of, input_read_by
from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.operation import (
    Announce,
    Compute,
    Exchange,
    Free,
    Operation,
)
from hanayo_megatron.lowering.rendezvous import Communicator


def announce_shapes(lowered: LoweredSchedule, communicator: Communicator) -> LoweredSchedule:
    """The same schedule with the shapes of all transfers sent ahead of them."""
    programs = tuple(_announced(program, communicator) for program in lowered.programs)
    return LoweredSchedule(lowered.schedule, programs)


def _announced(program: Sequence[Operation], communicator: Communicator) -> tuple[Operation, ...]:
    result: list[Operation] = []
    open_groups: deque[tuple[int, Exchange]] = deque()  # announced, data not posted; by number
    number_of: dict[object, int] = {}  # of the group that something waits for

    def post_data(last: int) -> None:
        while open_groups and open_groups[0][0] <= last:
            result.append(open_groups.popleft()[1])

    for position, operation in enumerate(program):
        if isinstance(operation, Exchange):
            in_the_way = [
                number
                for number, group in open_groups
                if communicator is Communicator.GROUP or group.peer == operation.peer
            ]
            post_data(max(in_the_way, default=-1))
            result.append(Announce(*operation))
            if operation.receives:
                open_groups.append((position, operation))
            else:
                result.append(operation)
            number_of |= dict.fromkeys(operation.sends, position)
            number_of |= {input_of(transfer): position for transfer in operation.receives}
            continue
        if isinstance(operation, Free):
            post_data(number_of.pop(operation.transfer))
        elif isinstance(operation, Compute):
            post_data(number_of.pop(input_read_by(operation.action), -1))
        result.append(operation)
    return tuple(result)

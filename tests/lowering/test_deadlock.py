"""The static checker, against all interleavings of small cases and against known bad orders."""

import random
from collections import Counter
from itertools import combinations

import pytest

from hanayo_megatron.lowering.announced import announce_shapes
from hanayo_megatron.lowering.deadlock import (
    DeadlockError,
    check_deadlock_free,
    find_deadlock,
)
from hanayo_megatron.lowering.lower import LoweredSchedule, lower
from hanayo_megatron.lowering.operation import Announce, Compute, Exchange, Free, Transfer
from hanayo_megatron.lowering.rendezvous import Communicator
from hanayo_megatron.schedule import Action, Kind, Schedule, ScheduleSpec
from hanayo_megatron.schedule.placement import looped
from hanayo_megatron.schedule.registry import build_schedule

F, B = Kind.F, Kind.B


def activation(microbatch, stage):
    return Transfer(F, microbatch, stage, stage + 1, stage, stage + 1)


def gradient(microbatch, stage):
    return Transfer(B, microbatch, stage, stage - 1, stage, stage - 1)


def send(*transfers):
    return Exchange(transfers[0].target, transfers, ())


def receive(*transfers):
    return Exchange(transfers[0].source, (), transfers)


@pytest.mark.parametrize("communicator", Communicator)
def test_two_ranks_that_both_send_first(communicator):
    down, up = activation(1, 0), gradient(0, 1)
    programs = ((send(down), receive(up)), (send(up), receive(down)))
    deadlock = find_deadlock(programs, communicator=communicator)
    assert deadlock.is_cycle
    assert [(w.rank, w.on, w.transfer) for w in deadlock.waits] == [(0, 1, down), (1, 0, up)]
    assert str(deadlock).splitlines() == [
        f"  rank 0 waits for rank 1, with {down}: rank 1 has {up} in front of it",
        f"  rank 1 waits for rank 0, with {up}: rank 0 has {down} in front of it",
        "  which waits for the first of these",
    ]
    together = ((Exchange(1, (down,), (up,)),), (Exchange(0, (up,), (down,)),))
    assert find_deadlock(together, communicator=communicator) is None
    in_order = ((send(down), receive(up)), (receive(down), send(up)))
    assert find_deadlock(in_order, communicator=communicator) is None


def test_one_direction_batched_and_the_other_not():
    down, up = activation(1, 0), gradient(0, 1)
    programs = ((Exchange(1, (down,), (up,)),), (receive(down), send(up)))
    deadlock = find_deadlock(programs)
    assert not deadlock.is_cycle
    assert "in another group, 0 sent and 1 received; here 1 sent and 1 received" in str(deadlock)


def test_transfers_of_one_group_in_another_order():
    first, second = activation(0, 0), activation(1, 0)
    programs = ((send(first, second),), (receive(second, first),))
    assert "in another group" in str(find_deadlock(programs))


def looped_forwards():
    """Two ranks, stages 0 and 2 on rank 0, 1 and 3 on rank 1; two microbatches, forward only."""
    orders = tuple(
        tuple(Action(stage, F, m) for stage in (rank, rank + 2) for m in range(2))
        for rank in range(2)
    )
    return Schedule("looped", looped(2, 2), 2, orders)


@pytest.mark.parametrize("communicator", Communicator)
def test_a_looped_schedule_that_receives_before_and_sends_after_each_compute(communicator):
    """Rank 0 sends its second output while rank 1 sends its first one back."""
    schedule = looped_forwards()
    programs = tuple(naive_program(schedule, rank) for rank in range(2))
    deadlock = find_deadlock(programs, communicator=communicator)
    assert deadlock.is_cycle
    assert [(w.rank, str(w.transfer)) for w in deadlock.waits] == [
        (0, "activation of microbatch 1 from stage 0 on rank 0 to stage 1 on rank 1"),
        (1, "activation of microbatch 0 from stage 1 on rank 1 to stage 2 on rank 0"),
    ]
    with pytest.raises(DeadlockError, match="'looped' blocks itself"):
        check_deadlock_free(LoweredSchedule(schedule, programs), communicator=communicator)
    check_deadlock_free(lower(schedule), communicator=communicator)


def naive_program(schedule, rank):
    """Blocking receive, compute, blocking send."""
    program = []
    rank_of = schedule.placement.rank_of
    for action in schedule.orders[rank]:
        stage, _, microbatch = action
        if stage > 0:
            moved = Transfer(F, microbatch, stage - 1, stage, rank_of[stage - 1], rank)
            program.append(Exchange(moved.source, (), (moved,)))
        program.append(Compute(action))
        if stage < len(rank_of) - 1:
            moved = Transfer(F, microbatch, stage, stage + 1, rank, rank_of[stage + 1])
            program += (Exchange(moved.target, (moved,), ()), Free(moved))
    return tuple(program)


def test_orders_that_only_one_communicator_per_pair_allows():
    """Three ranks in a ring, each of which sends first: fine in pairs, a cycle in one queue."""
    rings = [Transfer(F, 0, rank, rank + 1, rank, (rank + 1) % 3) for rank in range(3)]
    programs = tuple((send(rings[rank]), receive(rings[rank - 1])) for rank in range(3))
    assert find_deadlock(programs, communicator=Communicator.PAIR) is None
    deadlock = find_deadlock(programs, communicator=Communicator.GROUP)
    assert [(w.rank, w.on) for w in deadlock.waits] == [(0, 1), (1, 2), (2, 0)]


def test_a_compute_before_its_own_receive():
    schedule = build_schedule("1f1b", ScheduleSpec(pp=2, microbatches=1))
    first, second = lower(schedule).programs
    late = (second[1], second[0], *second[2:])
    deadlock = find_deadlock((first, late))
    assert not deadlock.is_cycle
    assert "rank 1 has not posted it; it is at position 0, where 1F0 needs" in str(deadlock)
    assert "which its list posts only later or never" in str(deadlock)


def test_a_transfer_that_the_other_side_never_posts():
    down = activation(0, 0)
    deadlock = find_deadlock(((send(down),), ()))
    assert str(deadlock).splitlines() == [
        f"  rank 0 waits for rank 1, with {down}: rank 1 has not posted it and is at the end of "
        "its list",
        "  which never happens",
    ]


def test_a_rank_that_sends_to_itself():
    own = Transfer(F, 0, 0, 1, 0, 0)
    deadlock = find_deadlock(((Exchange(0, (own,), (own,)),),))
    assert "no rank can send to itself" in str(deadlock)


GROUPS = Announce | Exchange


def announced_then_sent(*steps):
    """A program of ("announce" or "data", group) steps with everything sent freed where told."""
    kinds = {"announce": Announce, "data": Exchange}
    return tuple(kinds[what](*group) if what in kinds else Free(group) for what, group in steps)


def test_data_that_waits_for_a_shape_while_an_earlier_group_is_held_back():
    """Three ranks; rank 1 frees what it sent before it posts the data of an earlier group."""
    to_one = Transfer(B, 2, 6, 5, 2, 1)
    to_nought = Transfer(F, 0, 7, 8, 2, 0)
    from_one = Transfer(B, 3, 9, 8, 1, 0)
    first = announced_then_sent(
        ("announce", receive(to_nought)),
        ("data", receive(to_nought)),
        ("announce", receive(from_one)),
        ("data", receive(from_one)),
    )
    third = announced_then_sent(
        ("announce", send(to_one)),
        ("data", send(to_one)),
        ("free", to_one),
        ("announce", send(to_nought)),
        ("data", send(to_nought)),
        ("free", to_nought),
    )
    held_back = (
        ("announce", receive(to_one)),
        ("announce", send(from_one)),
        ("data", send(from_one)),
        ("free", from_one),
        ("data", receive(to_one)),
    )
    deadlock = find_deadlock((first, announced_then_sent(*held_back), third))
    assert deadlock.is_cycle
    assert [(w.rank, w.on) for w in deadlock.waits] == [(0, 2), (2, 1), (1, 0)]
    assert "where the exchange needs the shape of the activation of microbatch 0" in str(deadlock)
    in_order = (held_back[0], held_back[4], *held_back[1:4])
    assert find_deadlock((first, announced_then_sent(*in_order), third)) is None


def test_an_announcement_does_not_match_the_data():
    down = activation(0, 0)
    first = (Announce(1, (down,), ()), Exchange(1, (down,), ()))
    second = (Exchange(0, (), (down,)),)
    assert "in another group, 0 sent and 1 received; here announcements, 1 sent" in str(
        find_deadlock((first, second))
    )


def outcomes(programs, communicator):
    """Whether all ranks end, over every interleaving of all steps: a set of booleans."""
    ranks = range(len(programs))
    inputs = [
        {
            (t.kind is F, t.target_stage, t.microbatch): t
            for o in program
            if isinstance(o, Exchange)
            for t in o.receives
        }
        for program in programs
    ]
    announces = [any(isinstance(o, Announce) for o in program) for program in programs]

    def may_pass(rank, operation, moved):
        if isinstance(operation, Free):
            return (Exchange, operation.transfer) in moved
        if isinstance(operation, Exchange) and announces[rank]:
            return all((Announce, t) in moved for t in operation.receives)
        if isinstance(operation, Compute):
            stage, kind, microbatch = operation.action
            needed = inputs[rank].get((kind is F, stage, microbatch))
            return kind is Kind.W or needed is None or (Exchange, needed) in moved
        return True

    def queue(rank, peer, positions, ended):
        """Unfinished groups of the rank on the communicator that serves the peer."""
        return [
            position
            for position, o in enumerate(programs[rank][: positions[rank]])
            if isinstance(o, GROUPS)
            and (rank, position) not in ended
            and (communicator is Communicator.GROUP or o.peer == peer)
        ]

    def successors(state):
        positions, ended = state
        moved = set()
        for rank, position in ended:
            group = programs[rank][position]
            moved |= {(type(group), t) for t in (*group.sends, *group.receives)}
        for rank in ranks:
            program = programs[rank]
            if positions[rank] < len(program) and may_pass(rank, program[positions[rank]], moved):
                after = tuple(p + (r == rank) for r, p in enumerate(positions))
                yield after, ended
        for rank, peer in combinations(ranks, 2):
            mine = queue(rank, peer, positions, ended)
            theirs = queue(peer, rank, positions, ended)
            if mine and theirs:
                here, there = programs[rank][mine[0]], programs[peer][theirs[0]]
                same = (here.sends, here.receives) == (there.receives, there.sends)
                if same and type(here) is type(there) and (here.peer, there.peer) == (peer, rank):
                    yield positions, ended | {(rank, mine[0]), (peer, theirs[0])}

    start = (tuple(0 for _ in ranks), frozenset())
    seen, unseen, results = {start}, [start], set()
    while unseen:
        state = unseen.pop()
        following = list(successors(state))
        if not following:
            positions, ended = state
            everything = sum(isinstance(o, GROUPS) for program in programs for o in program)
            at_end = all(positions[r] == len(programs[r]) for r in ranks)
            results.add(at_end and len(ended) == everything)
        for state in following:
            if state not in seen:
                seen.add(state)
                unseen.append(state)
    return results


def disturbed(programs, rng):
    """The programs with some operations moved, and now and then a group taken apart on one side."""
    result = []
    for program in programs:
        operations = list(program)
        for _ in range(rng.choice((0, 0, 1, 2))):
            moved = operations.pop(rng.randrange(len(operations)))
            if isinstance(moved, GROUPS) and moved.sends and moved.receives and rng.random() < 0.3:
                kind = type(moved)
                operations.insert(
                    rng.randint(0, len(operations)), kind(moved.peer, (), moved.receives)
                )
                moved = kind(moved.peer, moved.sends, ())
            operations.insert(rng.randint(0, len(operations)), moved)
        result.append(tuple(operations))
    return tuple(result)


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("communicator", Communicator)
def test_agrees_with_every_interleaving_of_small_cases(communicator, announced):
    rng = random.Random(3)
    cases = [("1f1b", 2, 3), ("gpipe", 2, 2), ("hanayo", 2, 2), ("1f1b", 3, 2), ("gpipe", 3, 1)]
    found = Counter()
    for name, ranks, microbatches in cases:
        lowered = lower(build_schedule(name, ScheduleSpec(pp=ranks, microbatches=microbatches)))
        if announced:
            lowered = announce_shapes(lowered, communicator)
        for _ in range(60):
            programs = disturbed(lowered.programs, rng)
            expected = outcomes(programs, communicator)
            assert len(expected) == 1, "interleavings differ in their end"
            deadlock = find_deadlock(programs, communicator=communicator)
            assert {deadlock is None} == expected, programs
            found[deadlock is None] += 1
    assert min(found[True], found[False]) > 75

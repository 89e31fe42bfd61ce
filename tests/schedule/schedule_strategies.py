"""Random schedules for property tests, and a check of them that shares no code with the package."""

from collections import Counter
from dataclasses import replace

from hypothesis import strategies as st
from schedule_measure import measure, stage_times

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.schedule.schedule import Schedule


@st.composite
def placements(draw, replicas=(1, 2)):
    """Any stage map in which every rank holds a stage; neighbours or not."""
    num_ranks = draw(st.integers(1, 4))
    count = draw(st.sampled_from(replicas))
    depth = draw(st.integers(-(-num_ranks // count), 6))
    others = count * depth - num_ranks
    extra = draw(st.lists(st.integers(0, num_ranks - 1), min_size=others, max_size=others))
    rank_of = draw(st.permutations([*range(num_ranks), *extra]))
    return Placement(num_ranks, tuple(rank_of), count)


@st.composite
def user_schedules(draw, replicas=(1, 2)):
    """Any legal order on any placement: joint and split backwards mixed, microbatches shuffled."""
    placement = draw(placements(replicas))
    num_microbatches = draw(st.integers(placement.replicas, 5))
    random = draw(st.randoms(use_true_random=False))
    owner = list(range(placement.replicas))
    owner += [random.randrange(placement.replicas) for _ in range(num_microbatches - len(owner))]
    random.shuffle(owner)
    depth = placement.model_stages
    ready = [Action(owner[m] * depth, Kind.F, m) for m in range(num_microbatches)]
    orders = [[] for _ in range(placement.num_ranks)]
    while ready:
        action = ready.pop(random.randrange(len(ready)))
        stage, kind, microbatch = action
        orders[placement.rank_of[stage]].append(action)
        if kind is Kind.F and not placement.is_last(stage):
            ready.append(Action(stage + 1, Kind.F, microbatch))
        elif kind is Kind.F:
            ready.append(Action(stage, random.choice([Kind.B, Kind.I]), microbatch))
        elif kind is not Kind.W:
            if kind is Kind.I:
                ready.append(Action(stage, Kind.W, microbatch))
            if not placement.is_first(stage):
                ready.append(Action(stage - 1, random.choice([Kind.B, Kind.I]), microbatch))
    return Schedule("user", placement, num_microbatches, tuple(map(tuple, orders)))


@st.composite
def mutations(draw, schedule):
    """The schedule with one or two random changes; most are illegal, some swaps are not."""
    orders = [list(order) for order in schedule.orders]
    random = draw(st.randoms(use_true_random=False))
    for _ in range(draw(st.integers(1, 2))):
        rank = random.choice([r for r, order in enumerate(orders) if order])
        order = orders[rank]
        at = random.randrange(len(order))
        stage, kind, microbatch = order[at]
        match draw(
            st.sampled_from(["drop", "copy", "move", "swap", "kind", "stage", "microbatch"])
        ):
            case "drop":
                del order[at]
            case "copy":
                random.choice(orders).insert(0, order[at])
            case "move":
                random.choice(orders).append(order.pop(at))
            case "swap":
                other = random.randrange(len(order))
                order[at], order[other] = order[other], order[at]
            case "kind":
                order[at] = Action(stage, random.choice(list(Kind)), microbatch)
            case "stage":
                order[at] = Action(stage + random.choice([-1, 1]), kind, microbatch)
            case "microbatch":
                order[at] = Action(stage, kind, microbatch + random.choice([-1, 1]))
        if not any(orders):
            break
    return replace(schedule, orders=tuple(map(tuple, orders)))


def is_legal(schedule):
    """Every cell that must be there, once, on its rank; and a simulation of it that ends."""
    placement = schedule.placement
    cells = Counter()
    for rank, order in enumerate(schedule.orders):
        for stage, kind, microbatch in order:
            if not 0 <= stage < placement.num_stages or placement.rank_of[stage] != rank:
                return False
            cells[stage, microbatch, kind] += 1
    for microbatch in range(schedule.num_microbatches):
        replicas = {placement.replica_of(s) for s, m, _ in cells if m == microbatch}
        if len(replicas) != 1:
            return False
        depth = placement.model_stages
        for stage in range(depth * replicas.pop(), placement.num_stages)[:depth]:
            there = sorted(
                kind
                for (s, m, kind), times in cells.items()
                for _ in range(times)
                if (s, m) == (stage, microbatch)
            )
            if there not in (["B", "F"], ["F", "I", "W"]):
                return False
    if any(not 0 <= m < schedule.num_microbatches for _, m, _ in cells) or not all(schedule.orders):
        return False
    try:
        measure(schedule, stage_times(1, 1, 1))
    except AssertionError:
        return False
    return True

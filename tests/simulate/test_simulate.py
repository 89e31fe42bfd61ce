"""Exact timing, against drawings by hand, closed forms and a longest-path model."""

import random
from fractions import Fraction
from graphlib import TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering.random_schedules import random_schedule

from hanayo_megatron.lowering.deadlock import DeadlockError
from hanayo_megatron.lowering.lower import LoweredSchedule, lower
from hanayo_megatron.lowering.operation import Compute, Exchange, Free
from hanayo_megatron.lowering.rendezvous import Communicator
from hanayo_megatron.schedule import Action, Costs, Kind, Schedule, ScheduleSpec
from hanayo_megatron.schedule.placement import linear
from hanayo_megatron.schedule.registry import build_schedule
from hanayo_megatron.simulate.bounds import makespan_bound
from hanayo_megatron.simulate.simulate import simulate

TRANSFER_HALF = Costs(forward=1, backward=2, transfer=0.5)


def simulated(name, costs=None, communicator=Communicator.PAIR, **spec):
    costs = costs or Costs()
    lowered = lower(build_schedule(name, ScheduleSpec(costs=costs, **spec)), costs)
    return simulate(lowered, costs, communicator=communicator)


def spans(result, rank):
    """(action, start, end) of a rank's computes."""
    time = result.ticks.time
    return [
        (str(action), time(start), time(end))
        for action, start, end in zip(
            result.schedule.orders[rank], result.starts[rank], result.ends[rank], strict=True
        )
    ]


def test_one_microbatch_on_two_ranks_drawn_by_hand():
    result = simulated("1f1b", TRANSFER_HALF, pp=2, microbatches=1)
    assert spans(result, 0) == [("0F0", 0, 1), ("0B0", 5, 7)]
    assert spans(result, 1) == [("1F0", 1.5, 2.5), ("1B0", 2.5, 4.5)]
    assert result.makespan == 7
    assert result.bubble_ratio == 8 / 14
    assert result.own_span_bubble_ratios == (4 / 7, 0)
    assert result.compute == (3, 3)
    assert result.wait == (4, 4)
    assert result.transfer == (1, 1)
    assert result.transfers == 2
    assert result.peak_activations == (1, 1)
    assert result.peak_receive_buffers == (1, 1)


def test_two_microbatches_on_two_ranks_drawn_by_hand():
    result = simulated("1f1b", TRANSFER_HALF, pp=2, microbatches=2)
    assert spans(result, 0) == [("0F0", 0, 1), ("0F1", 1, 2), ("0B0", 5, 7), ("0B1", 8, 10)]
    assert spans(result, 1) == [
        ("1F0", 1.5, 2.5),
        ("1B0", 2.5, 4.5),
        ("1F1", 4.5, 5.5),
        ("1B1", 5.5, 7.5),
    ]
    assert result.makespan == 10
    assert result.bubble_ratio == 0.4
    assert result.own_span_bubble_ratio == 0.4
    assert result.transfer == (2, 2)
    assert result.peak_activations == (2, 1)
    # Microbatch 1 arrives while 1F0 runs, so its buffer was posted before, beside microbatch 0's.
    assert result.peak_receive_buffers == (1, 2)


def test_turns_cost_no_transfer():
    """One wave on two ranks: stages 0,1 go down, 2,3 come back; the fold stays on rank 1."""
    result = simulated("hanayo", TRANSFER_HALF, pp=2, microbatches=1)
    assert spans(result, 0) == [
        ("0F0", 0, 0.5),
        ("3F0", 2.5, 3),
        ("3B0", 3, 4),
        ("0B0", 7, 8),
    ]
    assert spans(result, 1) == [
        ("1F0", 1, 1.5),
        ("2F0", 1.5, 2),
        ("2B0", 4.5, 5.5),
        ("1B0", 5.5, 6.5),
    ]
    assert result.transfers == 4


@pytest.mark.parametrize(("communicator", "start"), [("pair", 6), ("group", 7)])
def test_one_communicator_for_all_makes_a_rank_finish_one_transfer_before_the_next(
    communicator, start
):
    """Rank 1 receives microbatch 1 at 3..5 and sends microbatch 0 on from 4, or only from 5."""
    costs = Costs(forward=1, backward=1, transfer=2)
    result = simulated("gpipe", costs, Communicator(communicator), pp=3, microbatches=2)
    assert spans(result, 1)[:2] == [("1F0", 3, 4), ("1F1", 5, 6)]
    assert spans(result, 2)[0] == ("2F0", start, start + 1)


@pytest.mark.parametrize("communicator", Communicator)
@pytest.mark.parametrize("ranks", range(1, 9))
def test_gpipe_and_1f1b_equal_their_formula(ranks, communicator):
    for name in ("gpipe", "1f1b"):
        for m in range(1, 33):
            result = simulated(name, None, communicator, pp=ranks, microbatches=m)
            assert result.bubble_ratio == (ranks - 1) / (m + ranks - 1), (name, m)
            assert result.makespan == 3 * (m + ranks - 1)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [(8, (0.3684, 0.2381, 0.1351, 0.0725)), (4, (0.3333, 0.2131, 0.1193, 0.0634))],
)
def test_hanayo_bubbles_and_peaks(ranks, expected):
    for waves, bubble in zip((1, 2, 4, 8), expected, strict=True):
        result = simulated("hanayo", pp=ranks, microbatches=ranks, waves=waves)
        assert round(result.bubble_ratio, 4) <= bubble
        least = ((2 * waves - 1) * ranks + 1) / (2 * waves)
        assert (min(result.peak_activations), max(result.peak_activations)) == (least, ranks)
        assert result.weight_memory == (1.0,) * ranks


def test_the_backward_split_holds_activations_until_the_weight_gradient():
    F, I, W = Kind.F, Kind.I, Kind.W  # noqa: E741
    order = [Action(0, k, m) for k, m in ((F, 0), (I, 0), (F, 1), (I, 1), (W, 0), (F, 2))]
    order += [Action(0, k, m) for k, m in ((W, 1), (I, 2), (W, 2))]
    result = simulate(lower(Schedule("split", linear(1), 3, (tuple(order),))))
    assert result.peak_activations == (2,)
    assert result.makespan == 9
    assert result.bubble_ratio == 0


def test_evaluation_holds_no_activation():
    order = tuple(Action(0, Kind.F, m) for m in range(5))
    result = simulate(lower(Schedule("evaluation", linear(1), 5, (order,))))
    assert result.peak_activations == (0,)


def test_prefetched_inputs_occupy_receive_buffers():
    """Rank 0 is ten times faster, so its five activations arrive before rank 1 is through one."""
    ranks = 2
    orders = tuple(
        tuple(Action(rank, kind, m) for kind in (Kind.F, Kind.B) for m in range(5))
        for rank in range(ranks)
    )
    slow = Costs(stage_times={(Kind.F, 0): 1, (Kind.F, 1): 10, (Kind.B, 0): 1, (Kind.B, 1): 1})
    result = simulate(lower(Schedule("slow", linear(ranks), 5, orders), slow), slow)
    assert result.peak_receive_buffers[1] == 5
    assert result.makespan == 1 + 50 + 5 + 1


def test_stage_and_link_figures_are_used():
    costs = Costs(
        transfer=1,
        stage_times={(Kind.F, 1): 4.0},
        link_times={(0, 1): 0.25},
    )
    result = simulated("1f1b", costs, pp=2, microbatches=1)
    assert spans(result, 1) == [("1F0", 1.25, 5.25), ("1B0", 5.25, 7.25)]
    assert spans(result, 0)[1] == ("0B0", 8.25, 10.25)


def test_programs_that_block_are_refused():
    schedule = build_schedule("1f1b", ScheduleSpec(pp=2, microbatches=1))
    first, second = lower(schedule).programs
    unsent = tuple(
        o for o in first if not (isinstance(o, Free) or (isinstance(o, Exchange) and o.sends))
    )
    with pytest.raises(DeadlockError, match="rank 0 never sends the activation of microbatch 0"):
        simulate(LoweredSchedule(schedule, (unsent, second)))


times = st.sampled_from([0, 0.25, 0.5, 1, 1.75, 3])


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(["gpipe", "1f1b", "hanayo"]),
    pp=st.integers(1, 5),
    microbatches=st.integers(1, 8),
    waves=st.integers(1, 3),
    forward=times.filter(bool),
    backward=times.filter(bool),
    transfer=times,
    link=times,
    communicator=st.sampled_from(Communicator),
)
def test_equals_the_longest_path(
    name, pp, microbatches, waves, forward, backward, transfer, link, communicator
):
    costs = Costs(forward=forward, backward=backward, transfer=transfer, link_times={(0, 1): link})
    spec = ScheduleSpec(pp=pp, microbatches=microbatches, waves=waves, costs=costs)
    lowered = lower(build_schedule(name, spec), costs)
    result = simulate(lowered, costs, communicator=communicator)
    assert Fraction(result.makespan).limit_denominator(10**6) == longest_path(
        lowered, costs, communicator
    )


@pytest.mark.parametrize("communicator", Communicator)
def test_equals_the_longest_path_for_random_schedules(communicator):
    """Split backwards, replicas, stages anywhere; links of all speeds."""
    rng = random.Random(11)
    for _ in range(100):
        schedule = random_schedule(rng)
        ranks = range(schedule.placement.num_ranks)
        costs = Costs(
            forward=rng.choice((1, 2)),
            weight=rng.choice((0.5, 1)),
            link_times={(a, b): rng.choice((0, 0.25, 1, 4)) for a in ranks for b in ranks},
        )
        lowered = lower(schedule, costs)
        result = simulate(lowered, costs, communicator=communicator)
        ticks = Fraction(result.makespan).limit_denominator(10**6)
        assert abs(ticks - longest_path(lowered, costs, communicator)) < Fraction(1, 1000)
        assert result.makespan >= makespan_bound(schedule, costs).makespan - 1e-9


def longest_path(lowered, costs, communicator):
    """Makespan as the longest path through a graph of all operations and groups.

    Nodes: ("operation", rank, position), whose value is when the rank's stream is past it, and
    ("group", lower rank, higher rank, n), whose value is when the pair's n-th group has ended.
    """
    placement = lowered.schedule.placement
    durations = costs.durations(placement)
    before, weight, group_of = {}, {}, {}
    for rank, program in enumerate(lowered.programs):
        counts, last_on_communicator = {}, {}
        for position, operation in enumerate(program):
            node = ("operation", rank, position)
            before[node] = {("operation", rank, position - 1)} if position else set()
            if isinstance(operation, Exchange):
                peer = operation.peer
                n = counts[peer] = counts.get(peer, -1) + 1
                group = ("group", min(rank, peer), max(rank, peer), n)
                before.setdefault(group, set()).add(node)
                key = peer if communicator is Communicator.PAIR else None
                if key in last_on_communicator:
                    before[group].add(last_on_communicator[key])
                last_on_communicator[key] = group
                moved = (*operation.sends, *operation.receives)
                weight[group] = max(Fraction(costs.link_time(t.source, t.target)) for t in moved)
                group_of.update(dict.fromkeys(moved, group))
            elif isinstance(operation, Compute):
                stage, kind, _ = operation.action
                weight[node] = Fraction(durations[kind][stage]).limit_denominator(10**6)
    inputs = {(t.kind, t.target_stage, t.microbatch): g for t, g in group_of.items()}
    for rank, program in enumerate(lowered.programs):
        for position, operation in enumerate(program):
            node = ("operation", rank, position)
            if isinstance(operation, Free):
                before[node].add(group_of[operation.transfer])
            elif isinstance(operation, Compute):
                stage, kind, microbatch = operation.action
                read = (Kind.F if kind is Kind.F else Kind.B, stage, microbatch)
                if kind is not Kind.W and read in inputs:
                    before[node].add(inputs[read])
    # A compute starts after all of these and ends a duration later; a wait has no duration.
    value = {}
    for node in TopologicalSorter(before).static_order():
        value[node] = max((value[b] for b in before[node]), default=0) + weight.get(node, 0)
    return max(value.values())

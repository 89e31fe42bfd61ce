"""Lowering and rendezvous add no wait to a schedule of the library."""

import pytest
from schedule.schedule_measure import measure

from hanayo_megatron.lowering.lower import lower
from hanayo_megatron.lowering.plan import plan_times
from hanayo_megatron.lowering.rendezvous import Communicator
from hanayo_megatron.schedule import Costs, Kind, ScheduleSpec
from hanayo_megatron.schedule.registry import build_schedule, schedule_names
from hanayo_megatron.simulate.simulate import simulate


def spec(pp, microbatches, costs):
    return ScheduleSpec(pp=pp, microbatches=microbatches, waves=2, costs=costs)


@pytest.mark.parametrize("communicator", Communicator)
@pytest.mark.parametrize("name", schedule_names())
def test_free_transfers_cost_nothing(name, communicator):
    """Against the simulator of the schedule tests, which knows no transfers."""
    for pp, microbatches in ((2, 4), (4, 8)):
        costs = Costs()
        schedule = build_schedule(name, spec(pp, microbatches, costs))
        durations = costs.durations(schedule.placement)
        expected = measure(schedule, {kind: durations[kind][0] for kind in Kind})
        found = simulate(lower(schedule), communicator=communicator)
        assert found.makespan == pytest.approx(expected.makespan)
        assert found.bubble_ratio == pytest.approx(expected.bubble)
        spans = [
            found.ticks.time(ends[-1] - starts[0])
            for starts, ends in zip(found.starts, found.ends, strict=True)
        ]
        assert spans == pytest.approx(expected.own_spans)


@pytest.mark.parametrize("name", schedule_names())
def test_transfers_of_a_tenth_of_a_forward_cost_their_latency_only(name):
    """With one communicator a pair, as much as if links had no queues and nobody waited to send."""
    costs = Costs(transfer=0.1)
    for pp, microbatches in ((2, 4), (4, 8)):
        schedule = build_schedule(name, spec(pp, microbatches, costs))
        plan = plan_times(schedule, costs)
        planned = costs.ticks(schedule.placement).time(max(ends[-1] for ends in plan.ends))
        assert simulate(lower(schedule, costs), costs).makespan == pytest.approx(planned)

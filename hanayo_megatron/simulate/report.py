"""Schedules built, simulated and summed up, as the command line shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.registry import build_schedule, canonical_name
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec
from hanayo_megatron.simulate.bounds import MakespanBound, makespan_bound
from hanayo_megatron.simulate.closed_form import ClosedForm, closed_form
from hanayo_megatron.simulate.costs_file import check_costs_fit
from hanayo_megatron.simulate.prefetch import lower_with_least_buffers
from hanayo_megatron.simulate.simulate import Simulation, simulate


@dataclass(frozen=True, kw_only=True)
class Report:
    """A simulated schedule beside what formulas and bounds say about it."""

    simulation: Simulation
    closed_form: ClosedForm | None
    bound: MakespanBound
    costs: Costs

    @property
    def schedule(self) -> Schedule:
        return self.simulation.schedule

    @property
    def peak_memory(self) -> float:
        """Weights and activations of the fullest rank, in the unit of M_w and M_a."""
        return max(
            weights * self.costs.weight_memory + activations * self.costs.activation_memory
            for weights, activations in zip(
                self.simulation.weight_memory, self.simulation.peak_activations, strict=True
            )
        )

    def as_dict(self) -> dict[str, Any]:
        """The figures under their JSON keys; lists are per rank."""
        simulation, placement = self.simulation, self.schedule.placement
        return {
            "schedule": self.schedule.name,
            "pp": placement.num_ranks,
            "microbatches": self.schedule.num_microbatches,
            "stages": placement.model_stages,
            "makespan": simulation.makespan,
            "bubble_ratio": simulation.bubble_ratio,
            "own_span_bubble_ratio": simulation.own_span_bubble_ratio,
            "closed_form_bubble_ratio": self.closed_form and self.closed_form.bubble_ratio,
            "peak_activations": list(simulation.peak_activations),
            "peak_receive_buffers": list(simulation.peak_receive_buffers),
            "peak_send_buffers": list(simulation.peak_send_buffers),
            "weight_memory": list(simulation.weight_memory),
            "transfers": simulation.transfers,
            "compute": list(simulation.compute),
            "wait": list(simulation.wait),
        }


def report_by_name(name: str, spec: ScheduleSpec) -> Report:
    """Build a registered schedule and simulate it with the spec's costs.

    Raises ScheduleError if it cannot be built or run, ValueError if the costs do not fit it.
    """
    name = canonical_name(name)
    return report(build_schedule(name, spec), spec.costs, closed_form(name, spec))


def report(schedule: Schedule, costs: Costs, formula: ClosedForm | None = None) -> Report:
    """Simulate a schedule. Raises as ``report_by_name`` does."""
    check_costs_fit(costs, schedule.placement)
    return Report(
        simulation=simulate(lower_with_least_buffers(schedule, costs), costs),
        closed_form=formula,
        bound=makespan_bound(schedule, costs),
        costs=costs,
    )

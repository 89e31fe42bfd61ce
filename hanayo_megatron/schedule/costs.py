"""How long work takes and how much memory it holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.placement import Placement

_TICKS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Times of one rank's whole share of the model for one microbatch, as in the Hanayo paper.

    A stage takes its part of them: a rank of a wave pipeline holds 2W stages, so a stage's forward
    takes ``forward / 2W``. Per-stage and per-link figures, where given, win.

    Args:
        forward: T_F, any unit, the same for all times.
        backward: T_B of a joint backward; ``None`` means ``input + weight``.
        input: T_I, the backward for the input only.
        weight: T_W, the backward for the weights only.
        transfer: T_C, one tensor between two ranks.
        stage_times: (kind, stage id) -> time of that stage's action.
        link_times: (source rank, target rank) -> time of one transfer.
        weight_memory: M_w, weights of one rank's share.
        activation_memory: M_a, activations of one rank's share for one microbatch.
    """

    forward: float = 1.0
    backward: float | None = None
    input: float = 1.0
    weight: float = 1.0
    transfer: float = 0.0
    stage_times: Mapping[tuple[Kind, int], float] = field(default_factory=dict)
    link_times: Mapping[tuple[int, int], float] = field(default_factory=dict)
    weight_memory: float = 1.0
    activation_memory: float = 1.0

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "input", "weight", "transfer"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} time must not be negative, got {value}")

    @property
    def full_backward(self) -> float:
        """T_B."""
        return self.input + self.weight if self.backward is None else self.backward

    def durations(self, placement: Placement) -> dict[Kind, list[float]]:
        """Time of every stage id's action of every kind."""
        share = placement.num_ranks / placement.model_stages
        whole = {
            Kind.F: self.forward,
            Kind.B: self.full_backward,
            Kind.I: self.input,
            Kind.W: self.weight,
        }
        return {
            kind: [
                self.stage_times.get((kind, stage), time * share)
                for stage in range(placement.num_stages)
            ]
            for kind, time in whole.items()
        }

    def link_time(self, source: int, target: int) -> float:
        """T_C between two ranks; nothing within a rank."""
        return 0.0 if source == target else self.link_times.get((source, target), self.transfer)

    def ticks(self, placement: Placement) -> Ticks:
        """The same figures as whole numbers, so that equal instants compare equal."""
        durations = self.durations(placement)
        ranks = range(placement.num_ranks)
        links = {(a, b): self.link_time(a, b) for a in ranks for b in ranks}
        unit = _unit({time for times in (*durations.values(), links.values()) for time in times})
        return Ticks(
            unit,
            {kind: [round(time / unit) for time in times] for kind, times in durations.items()},
            {link: round(time / unit) for link, time in links.items()},
        )


@dataclass(frozen=True)
class Ticks:
    """Costs of a placement in whole ticks of ``unit`` time."""

    unit: Fraction
    durations: Mapping[Kind, list[int]]
    links: Mapping[tuple[int, int], int]

    def time(self, ticks: int) -> float:
        """Ticks in the unit of the costs."""
        return ticks * self.unit.numerator / self.unit.denominator


def _unit(times: Iterable[float]) -> Fraction:
    """A millionth of the largest common part of the times, or of the shortest if they have none."""
    positive = [time for time in times if time > 0]
    shortest = Fraction(min(positive, default=1.0))
    simple = [Fraction(time).limit_denominator(_TICKS) for time in positive]
    if all(math.isclose(s, time, rel_tol=1e-12) for s, time in zip(simple, positive, strict=True)):
        numerators = (s.numerator for s in simple)
        part = Fraction(math.gcd(*numerators), math.lcm(*(s.denominator for s in simple)))
        if part and shortest / part <= _TICKS:
            return part / _TICKS
    return shortest / _TICKS

"""Breadth-first: every chunk runs all microbatches (Lamy-Poirier, MLSys 2023)."""

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.placement import looped
from hanayo_megatron.schedule.registry import register_schedule
from hanayo_megatron.schedule.schedule import Schedule, ScheduleSpec


@register_schedule("breadth-first")
def breadth_first(spec: ScheduleSpec) -> Schedule:
    """GPipe on a looped placement (VP stages): chunk by chunk, all microbatches; any P, V and M.

    Bubble ratio (P-1)/(VM+P-1) for M >= P; below, every loop waits P-M stage times more.
    Activations: M·M_a on every rank. Each stage's weights are needed in one go, which suits sharded
    weights.
    """
    placement = looped(spec.pp, spec.chunks)
    microbatches = range(spec.microbatches)
    orders = tuple(
        tuple(Action(stage, Kind.F, m) for stage in stages for m in microbatches)
        + tuple(Action(stage, Kind.B, m) for stage in reversed(stages) for m in microbatches)
        for stages in placement.stages_of
    )
    return Schedule("breadth-first", placement, spec.microbatches, orders)

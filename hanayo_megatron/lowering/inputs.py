"""Which actions read a tensor that another rank sends."""

from __future__ import annotations

from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.placement import Placement


def reads_transfer(placement: Placement) -> dict[Kind, list[bool]]:
    """For every kind, by stage id: whether its input comes from another rank."""
    rank_of, stages = placement.rank_of, range(placement.num_stages)
    forward = [not placement.is_first(s) and rank_of[s - 1] != rank_of[s] for s in stages]
    backward = [not placement.is_last(s) and rank_of[s + 1] != rank_of[s] for s in stages]
    return {
        Kind.F: forward,
        Kind.B: backward,
        Kind.I: backward,
        Kind.W: [False] * placement.num_stages,
    }

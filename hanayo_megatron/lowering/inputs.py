"""Which actions read or make a tensor that moves between ranks."""

from __future__ import annotations

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.placement import Placement

Input = tuple[bool, int, int]
"""What a stage reads: (whether it is an activation, stage, microbatch)."""


def input_of(transfer: Transfer) -> Input:
    """What the transfer brings."""
    return transfer.kind is Kind.F, transfer.target_stage, transfer.microbatch


def input_read_by(action: Action) -> Input | None:
    """What the action reads, wherever it comes from; None: a W reads nothing new."""
    stage, kind, microbatch = action
    return None if kind is Kind.W else (kind is Kind.F, stage, microbatch)


def reads_transfer(placement: Placement) -> dict[Kind, list[bool]]:
    """For every kind, by stage id: whether its input comes from another rank."""
    return _by_kind(
        placement, forward=_other_rank_before(placement), backward=_other_rank_behind(placement)
    )


def makes_transfer(placement: Placement) -> dict[Kind, list[bool]]:
    """For every kind, by stage id: whether its output goes to another rank."""
    return _by_kind(
        placement, forward=_other_rank_behind(placement), backward=_other_rank_before(placement)
    )


def _other_rank_before(placement: Placement) -> list[bool]:
    """By stage id: whether the stage before it in the model is on another rank."""
    rank_of = placement.rank_of
    return [
        not placement.is_first(stage) and rank_of[stage - 1] != rank_of[stage]
        for stage in range(placement.num_stages)
    ]


def _other_rank_behind(placement: Placement) -> list[bool]:
    """By stage id: whether the stage behind it in the model is on another rank."""
    rank_of = placement.rank_of
    return [
        not placement.is_last(stage) and rank_of[stage + 1] != rank_of[stage]
        for stage in range(placement.num_stages)
    ]


def _by_kind(
    placement: Placement, *, forward: list[bool], backward: list[bool]
) -> dict[Kind, list[bool]]:
    return {
        Kind.F: forward,
        Kind.B: backward,
        Kind.I: backward,
        Kind.W: [False] * placement.num_stages,
    }

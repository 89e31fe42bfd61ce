"""Whether the transfers of action lists fit each other and the schedule, whatever their order."""

from __future__ import annotations

from hanayo_megatron.lowering.inputs import Input, input_of, input_read_by, reads_transfer
from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.operation import Announce, Compute, Exchange, Free, Transfer
from hanayo_megatron.schedule.action import Kind


def find_transfer_faults(lowered: LoweredSchedule) -> list[str]:
    """Every fault in words, one each.

    Found are: a rank that sends to itself; an empty group; a transfer at a wrong rank or peer, or
    that only one side posts, or a side twice; one sent before it is computed, freed before it is
    sent or never freed; an input that is not received before its compute, or never read; a group
    that is not exchanged as it was announced, where any group of the rank is.
    """
    ranks = [_Rank(lowered, rank) for rank in range(len(lowered.programs))]
    faults = [fault for rank in ranks for fault in rank.faults]
    sent = {transfer for rank in ranks for transfer in rank.sent}
    received = {transfer for rank in ranks for transfer in rank.received}
    faults += (f"rank {t.target} never receives the {t}" for t in sorted(sent - received))
    faults += (f"rank {t.source} never sends the {t}" for t in sorted(received - sent))
    return faults


class _Rank:
    """One rank's program, read from start to end."""

    def __init__(self, lowered: LoweredSchedule, rank: int) -> None:
        self.faults: list[str] = []
        self.sent: set[Transfer] = set()
        self.received: set[Transfer] = set()
        self._rank = rank
        self._rank_of = lowered.schedule.placement.rank_of
        # Outputs computed and inputs received so far, as (is an activation, stage, microbatch).
        self._outputs: set[Input] = set()
        self._inputs: set[Input] = set()
        self._unfreed: set[Transfer] = set()
        self._announced: set[tuple] = set()
        self._announces = any(isinstance(o, Announce) for o in lowered.programs[rank])
        reads = reads_transfer(lowered.schedule.placement)
        for self._position, operation in enumerate(lowered.programs[rank]):
            if isinstance(operation, Announce):
                self._announce(operation)
            elif isinstance(operation, Exchange):
                self._exchange(operation)
            elif isinstance(operation, Compute):
                stage, kind, _ = operation.action
                self._compute(operation, reads[kind][stage])
            elif isinstance(operation, Free):
                self._free(operation.transfer)
        for peer, *_ in sorted(self._announced):
            self.faults.append(f"rank {rank} never exchanges what it announces to rank {peer}")
        for transfer in sorted(self._unfreed):
            self.faults.append(f"rank {rank} never frees the {transfer}")
        for is_activation, stage, microbatch in sorted(self._inputs):
            what = "activation" if is_activation else "gradient"
            self.faults.append(
                f"rank {rank} never reads the {what} of microbatch {microbatch} that it receives "
                f"for stage {stage}"
            )

    def _announce(self, announce: Announce) -> None:
        for transfer in announce.sends:
            self._check_computed(transfer, "announces")
        self._announced.add(tuple(announce))

    def _exchange(self, exchange: Exchange) -> None:
        peer, sends, receives = exchange
        if self._announces and tuple(exchange) not in self._announced:
            self._fault(f"exchanges a group with rank {peer} that it did not announce")
        self._announced.discard(tuple(exchange))
        if peer == self._rank:
            self._fault("exchanges with itself")
            return
        if not sends and not receives:
            self._fault("exchanges nothing")
        for transfer in sends:
            self._check_ends(transfer, self._rank, peer)
            if transfer in self.sent:
                self._fault(f"sends the {transfer} again")
            self._check_computed(transfer, "sends")
            self._unfreed.add(transfer)
        for transfer in receives:
            self._check_ends(transfer, peer, self._rank)
            if transfer in self.received:
                self._fault(f"receives the {transfer} again")
            self._inputs.add(input_of(transfer))
        self.sent.update(sends)
        self.received.update(receives)

    def _check_computed(self, transfer: Transfer, verb: str) -> None:
        output = (transfer.kind is Kind.F, transfer.source_stage, transfer.microbatch)
        if output not in self._outputs:
            self._fault(f"{verb} the {transfer} before it is computed")

    def _check_ends(self, transfer: Transfer, source: int, target: int) -> None:
        kind, _, source_stage, target_stage, *ends = transfer
        step = 1 if kind is Kind.F else -1
        known = range(len(self._rank_of))
        stages_fit = (
            target_stage == source_stage + step
            and source_stage in known
            and target_stage in known
            and [self._rank_of[source_stage], self._rank_of[target_stage]] == ends
        )
        if ends != [source, target] or not stages_fit:
            self._fault(
                f"exchanges the {transfer} from rank {source} to rank {target}, which does not "
                "fit the transfer or the placement"
            )

    def _compute(self, compute: Compute, reads: bool) -> None:
        item = input_read_by(compute.action)
        if item is None:
            return
        if reads and item not in self._inputs:
            self._fault(f"runs {compute.action} before its input is received")
        self._inputs.discard(item)
        self._outputs.add(item)

    def _free(self, transfer: Transfer) -> None:
        if transfer not in self._unfreed:
            self._fault(f"frees the {transfer}, which it has not sent before")
        self._unfreed.discard(transfer)

    def _fault(self, what: str) -> None:
        self.faults.append(f"rank {self._rank} at position {self._position} {what}")

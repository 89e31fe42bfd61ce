"""Debug mode finds wrong messages and changed bytes; whole runs pass under it."""

from dataclasses import dataclass, field

import pytest
import torch

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.runtime.checked_transport import CheckedTransport, MessageError, checksums
from hanayo_megatron.runtime.transport import Parcel
from hanayo_megatron.schedule import Kind

TRANSFER = Transfer(Kind.F, 3, 0, 1, 0, 1)


@dataclass
class Wire:
    """Gives a receiver what was sent before, by position alone as NCCL does."""

    sent: list = field(default_factory=list)
    change: object = None

    def exchange(self, peer, *, sends, receives):
        self.sent += [parcel.tensor.clone() for parcel in sends]
        for parcel in receives:
            parcel.tensor.copy_(self.sent.pop(0))
        if receives and self.change is not None:
            self.change(receives)
        return [self] * (len(sends) + len(receives))

    def wait(self):
        pass


def send_and_receive(sent, expected, *, steps=(1, 1), change=None):
    wire = Wire(change=change)
    data = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    buffer = torch.empty_like(data)
    CheckedTransport(wire, step=steps[0]).exchange(1, sends=[Parcel(sent, data)], receives=[])
    (handle,) = CheckedTransport(wire, step=steps[1]).exchange(
        0, sends=[], receives=[Parcel(expected, buffer)]
    )
    handle.wait()
    return torch.equal(buffer, data)


def test_the_right_message_passes():
    assert send_and_receive(TRANSFER, TRANSFER)


@pytest.mark.parametrize(
    ("other", "steps", "words"),
    [
        (TRANSFER._replace(microbatch=4), (1, 1), "microbatch: expected 4, got 3"),
        (TRANSFER._replace(kind=Kind.B), (1, 1), "direction: expected 0, got 1"),
        (TRANSFER._replace(target_stage=5), (1, 1), "target stage: expected 5, got 1"),
        (TRANSFER, (1, 2), "step: expected 2, got 1"),
    ],
)
def test_another_message_is_found(other, steps, words):
    with pytest.raises(MessageError, match=words):
        send_and_receive(TRANSFER, other, steps=steps)


def swap_two(receives):
    data = receives[0].tensor
    data[0, 1], data[1, 0] = data[1, 0].item(), data[0, 1].item()


def flip_a_bit(receives):
    receives[0].tensor.view(torch.int16)[1, 1] ^= 1


@pytest.mark.parametrize("change", [swap_two, flip_a_bit])
def test_changed_bytes_are_found(change):
    with pytest.raises(MessageError, match="other bytes"):
        send_and_receive(TRANSFER, TRANSFER, change=change)


def test_checksums_of_a_known_tensor():
    # Little-endian bytes 1 0 2 0: their sum, and their sum weighted by place 1..4.
    assert checksums(torch.tensor([1, 2], dtype=torch.int16)) == [3, 1 * 1 + 3 * 2]

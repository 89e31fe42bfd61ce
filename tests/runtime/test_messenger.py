"""Headers say what data is like, and buffers are made by them."""

import pytest
import torch

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.runtime import shape_header
from hanayo_megatron.runtime.messenger import Expected, Message, Messenger
from hanayo_megatron.runtime.receive_buffers import ReceiveBuffers
from hanayo_megatron.runtime.strict_transport import StrictNetwork
from hanayo_megatron.runtime.tensors import TensorSpec, specs_of
from hanayo_megatron.schedule import Kind

DOWN = Transfer(Kind.F, 3, 0, 1, 0, 1)
UP = Transfer(Kind.B, 2, 1, 0, 1, 0)


@pytest.mark.parametrize(
    "tensors",
    [
        torch.arange(6.0).view(2, 3),
        (torch.ones(2, dtype=torch.bfloat16), torch.tensor(5), torch.empty(0, 7)),
    ],
)
def test_what_was_announced_arrives(tensors):
    back = torch.full((5,), 8, dtype=torch.int32)

    def work(rank, transport):
        messenger = Messenger(transport, ReceiveBuffers("cpu"))
        mine, theirs = (Message(DOWN, tensors), UP) if rank == 0 else (Message(UP, back), DOWN)
        told, (announcement,) = messenger.announce(1 - rank, sends=[mine], receives=[theirs])
        specs = announcement.wait()
        sent, (arrival,) = messenger.exchange(
            1 - rank, sends=[mine], receives=[Expected(theirs, specs)]
        )
        for handle in (*told, *sent):
            handle.wait()
        return arrival.wait()

    at_first, at_second = StrictNetwork(2).run(work)
    assert torch.equal(at_first, back)
    assert specs_of(at_second) == specs_of(tensors)
    if isinstance(tensors, tuple):
        assert all(map(torch.equal, at_second, tensors))
    else:
        assert torch.equal(at_second, tensors)


@pytest.mark.parametrize(
    "tensors",
    [
        torch.empty(3, 0, 5, dtype=torch.bfloat16),
        torch.empty((), dtype=torch.int32),
        (torch.empty(2, dtype=torch.float64),),
        (torch.empty(1, 2, 3, 4, 5, 6), torch.empty(7, dtype=torch.bool)),
    ],
)
def test_headers_say_number_dtypes_and_shapes(tensors):
    assert shape_header.read(shape_header.write(tensors, "cpu")) == specs_of(tensors)


def test_specs():
    single = specs_of(torch.empty(2, 0, dtype=torch.float16))
    assert single == TensorSpec((2, 0), torch.float16)
    assert str(single) == "[2, 0] of torch.float16"
    assert specs_of((torch.empty(1),)) == (TensorSpec((1,), torch.float32),)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (tuple(torch.empty(1) for _ in range(7)), "7 tensors; at most 6"),
        (torch.empty(1, 1, 1, 1, 1, 1, 1), "7 dimensions"),
        (torch.empty(1, dtype=torch.complex64), "complex64"),
    ],
)
def test_what_does_not_fit_is_refused(tensors, words):
    with pytest.raises(ValueError, match=words):
        shape_header.write(tensors, "cpu")

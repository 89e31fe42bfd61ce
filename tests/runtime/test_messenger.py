"""Order of headers and data, and what headers can say."""

import pytest
import torch

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.runtime import shape_header
from hanayo_megatron.runtime.messenger import AnnouncedShapes, Message
from hanayo_megatron.schedule import Kind

TRANSFERS = {
    (source, target): Transfer(Kind.F, 0, source, target, source, target)
    for source in range(3)
    for target in range(3)
}


class Log:
    """Remembers the groups posted: (peer, header or data); fills headers by what is expected."""

    def __init__(self):
        self.posted = []

    def exchange(self, peer, *, sends, receives):
        is_header = {p.part == shape_header.MAX_TENSORS for p in (*sends, *receives)}
        self.posted.append((peer, "header" if is_header == {True} else "data"))
        for parcel in receives:
            if is_header == {True}:
                parcel.tensor.copy_(shape_header.write(torch.empty(2, 3), "cpu"))
        return [self] * (len(sends) + len(receives))

    def wait(self):
        self.posted.append("wait")


def messenger(*, in_one_queue):
    log = Log()
    return AnnouncedShapes(log, device="cpu", in_one_queue=in_one_queue), log.posted


def send(to):
    return {"sends": [Message(TRANSFERS[0, to], torch.ones(2))], "receives": []}


def receive(source):
    return {"sends": [], "receives": [TRANSFERS[source, 0]]}


def test_data_follows_at_once_where_a_rank_only_sends():
    mail, posted = messenger(in_one_queue=False)
    mail.exchange(1, **send(1))
    assert posted == [(1, "header"), "wait", (1, "data")]


def test_receiving_waits_only_when_the_data_is_needed():
    mail, posted = messenger(in_one_queue=False)
    _, (arrival,) = mail.exchange(1, **receive(1))
    assert posted == [(1, "header")]
    assert arrival.wait().shape == (2, 3)
    assert posted == [(1, "header"), "wait", (1, "data"), "wait"]


def test_a_wait_posts_the_data_of_earlier_groups_and_of_no_later_one():
    mail, posted = messenger(in_one_queue=False)
    mail.exchange(1, **receive(1))
    _, (second,) = mail.exchange(2, **receive(2))
    mail.exchange(1, **receive(1))
    data = [entry for entry in posted if entry != "wait"]
    assert data == [(1, "header"), (2, "header"), (1, "data"), (1, "header")]
    second.wait()
    data = [entry for entry in posted if entry != "wait"]
    assert data[4:] == [(2, "data")]


def test_in_one_queue_headers_and_data_alternate():
    mail, posted = messenger(in_one_queue=True)
    for peer in (1, 2, 1):
        mail.exchange(peer, **receive(peer))
    assert [entry for entry in posted if entry != "wait"] == [
        *((1, "header"), (1, "data"), (2, "header"), (2, "data")),
        (1, "header"),
    ]


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
    found = shape_header.read(shape_header.write(tensors, "cpu"))
    assert isinstance(found, tuple) == isinstance(tensors, tuple)

    def facts(given):
        return [(t.dtype, t.shape) for t in (given if isinstance(given, tuple) else (given,))]

    assert facts(found) == facts(tensors)


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

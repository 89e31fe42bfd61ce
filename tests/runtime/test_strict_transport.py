"""The strict transport has NCCL's faults: what would hang or corrupt there, fails here."""

import pytest
import torch

from hanayo_megatron.lowering.operation import Transfer
from hanayo_megatron.runtime.strict_transport import StrictNetwork
from hanayo_megatron.runtime.transport import Parcel, TransportError
from hanayo_megatron.schedule import Kind


def transfer(source, target, microbatch=0):
    return Transfer(Kind.F, microbatch, source, target, source, target)


def post(transport, peer, *, sends=(), receives=(), size=2, dtype=torch.float32):
    """Post one group; sent tensors hold the microbatch. Returns handle and received tensors."""
    outgoing = [Parcel(t, torch.full((size,), t.microbatch + 1, dtype=dtype)) for t in sends]
    incoming = [Parcel(t, torch.zeros(size, dtype=dtype)) for t in receives]
    handle = transport.exchange(peer, sends=outgoing, receives=incoming)[0]
    return handle, [p.tensor for p in (*outgoing, *incoming)]


def run(*programs, communicators="pair"):
    """Run a function per rank; gives each its transport."""
    return StrictNetwork(len(programs), communicators).run(lambda rank, t: programs[rank](t))


def test_a_message_arrives_when_it_was_waited_for_and_not_before():
    def send(transport):
        post(transport, 1, sends=[transfer(0, 1, 6)])[0].wait()
        post(transport, 1, sends=[transfer(0, 1, 7)])[0].wait()

    def receive(transport):
        first, (early,) = post(transport, 0, receives=[transfer(0, 1, 6)])
        second, _ = post(transport, 0, receives=[transfer(0, 1, 7)])
        second.wait()
        assert early.tolist() == [0, 0]
        first.wait()
        return early.tolist()

    assert run(send, receive)[1] == [7, 7]


def test_both_send_first():
    """gloo and MPI buffer small messages and get away with it."""

    def program(mine, theirs):
        def work(transport):
            post(transport, theirs, sends=[transfer(mine, theirs)])[0].wait()
            post(transport, theirs, receives=[transfer(theirs, mine)])[0].wait()

        return work

    with pytest.raises(TransportError, match="groups do not match"):
        run(program(0, 1), program(1, 0))


def test_a_wait_for_what_nobody_sends_names_the_transfer():
    def wait(transport):
        post(transport, 1, receives=[transfer(1, 0, 5)])[0].wait()

    with pytest.raises(TransportError, match=r"deadlock: rank 0 .* activation of microbatch 5"):
        run(wait, lambda transport: None)


def ring(first):
    """Each of three ranks waits for its send before it receives: a cycle for rendezvous."""

    def work(transport):
        rank = transport.rank
        after, before = (rank + 1) % 3, (rank - 1) % 3
        groups = {
            "send": lambda: post(transport, after, sends=[transfer(rank, after)]),
            "receive": lambda: post(transport, before, receives=[transfer(before, rank)]),
        }
        order = ["send", "receive"] if first == "send" else ["receive", "send"]
        for name in order:
            groups[name]()[0].wait()

    return [work] * 3


@pytest.mark.parametrize("first", ["send", "receive"])
def test_a_cycle_of_three(first):
    with pytest.raises(TransportError, match=r"deadlock: rank 0 .*; rank 1 .*; rank 2 "):
        run(*ring(first))


def test_one_queue_for_all_peers_holds_up_what_pairs_let_pass():
    """Rank 1 posts its groups in another order than rank 0 and rank 2 together allow."""

    def zero(transport):
        first, _ = post(transport, 1, sends=[transfer(0, 1)])
        second, _ = post(transport, 2, sends=[transfer(0, 2)])
        first.wait()
        second.wait()

    def one(transport):
        second, _ = post(transport, 2, sends=[transfer(1, 2)])
        first, _ = post(transport, 0, receives=[transfer(0, 1)])
        first.wait()
        second.wait()

    def two(transport):
        second, _ = post(transport, 0, receives=[transfer(0, 2)])
        first, _ = post(transport, 1, receives=[transfer(1, 2)])
        first.wait()
        second.wait()

    run(zero, one, two, communicators="pair")
    with pytest.raises(TransportError, match="deadlock"):
        run(zero, one, two, communicators="group")


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ({"size": 3}, "sent torch.float32 .2,., expected torch.float32 .3,."),
        ({"dtype": torch.float64}, "sent torch.float32 .2,., expected torch.float64"),
    ],
)
def test_sizes_and_dtypes_must_match(theirs, words):
    def send(transport):
        post(transport, 1, sends=[transfer(0, 1)])[0].wait()

    def receive(transport):
        post(transport, 0, receives=[transfer(0, 1)], **theirs)[0].wait()

    with pytest.raises(TransportError, match=words):
        run(send, receive)


@pytest.mark.parametrize("order", [(1, 0), (0,), (0, 2)])
def test_groups_must_hold_the_same_transfers_in_the_same_order(order):
    def send(transport):
        post(transport, 1, sends=[transfer(0, 1, 0), transfer(0, 1, 1)])[0].wait()

    def receive(transport):
        post(transport, 0, receives=[transfer(0, 1, m) for m in order])[0].wait()

    with pytest.raises(TransportError, match="groups do not match"):
        run(send, receive)


def test_one_direction_batched_and_the_other_not():
    def batched(transport):
        post(transport, 1, sends=[transfer(0, 1)], receives=[transfer(1, 0)])[0].wait()

    def single(transport):
        post(transport, 0, receives=[transfer(0, 1)])[0].wait()
        post(transport, 0, sends=[transfer(1, 0)])[0].wait()

    with pytest.raises(TransportError, match="groups do not match"):
        run(batched, single)


def test_what_is_sent_must_stay_untouched_until_the_send_has_ended():
    def send(transport):
        handle, (tensor,) = post(transport, 1, sends=[transfer(0, 1)])
        tensor.zero_()
        handle.wait()
        handle, (tensor,) = post(transport, 1, sends=[transfer(0, 1, 1)])
        post(transport, 1, receives=[transfer(1, 0)])[0].wait()  # the one before has run by now
        tensor.zero_()
        handle.wait()

    def receive(transport):
        post(transport, 0, receives=[transfer(0, 1)])[0].wait()
        post(transport, 0, receives=[transfer(0, 1, 1)])
        post(transport, 0, sends=[transfer(1, 0)])[0].wait()

    with pytest.raises(
        TransportError, match="overwritten before its send had ended: activation of"
    ):
        run(send, receive)


def test_no_rank_sends_to_itself():
    with pytest.raises(TransportError, match="must not send to itself"):
        run(lambda transport: post(transport, 0, sends=[transfer(0, 0)]), lambda transport: None)


def test_a_group_that_nobody_matched_is_found_at_the_end():
    with pytest.raises(TransportError, match="never matched by the peer: rank 0 with rank 1"):
        run(lambda transport: post(transport, 1, sends=[transfer(0, 1)]), lambda transport: None)

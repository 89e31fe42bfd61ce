"""Ranks compare their plans through a store."""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from hanayo_megatron.runtime.agreement import DisagreementError, agree


def run(fields_of_ranks, *, absent=(), patience=5.0, late=None):
    """What each rank's agreement said; None where it returned, or where the rank was absent.

    ``late``: seconds by which each rank comes later.
    """
    store = dist.HashStore()

    def work(rank):
        time.sleep((late or {}).get(rank, 0.0))
        try:
            agree(
                store,
                rank=rank,
                num_ranks=len(fields_of_ranks),
                fields=fields_of_ranks[rank],
                patience=patience,
            )
        except DisagreementError as error:
            return str(error)
        return None

    ranks = [r for r in range(len(fields_of_ranks)) if r not in absent]
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(work, ranks))


def test_equal_plans_pass():
    assert run([{"waves": "2", "hash": "ab"}] * 3) == [None] * 3


def test_every_rank_learns_who_has_what():
    plans = [{"waves": "1", "seed": "7"}] * 4
    plans[2] = {"waves": "2"}
    said = run(plans)
    assert len(set(said)) == 1
    assert "waves: 1 on ranks 0, 1, 3; 2 on rank 2" in said[0]
    assert "seed: 7 on ranks 0, 1, 3; nothing on rank 2" in said[0]


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_does_not_take_part_is_named(absent):
    said = run([{"waves": "1"}] * 3, absent=[absent], patience=0.3)
    assert all(f"rank {absent} did not take part" in text for text in said)


def test_the_absent_rank_is_named_also_where_rank_0_came_late():
    """Its patience ends later than that of the ranks that came before."""
    said = run([{"waves": "1"}] * 3, absent=[2], patience=3.0, late={0: 2.6})
    assert all("rank 2 did not take part" in text for text in said)


class CountingStore:
    """A store that counts its requests."""

    def __init__(self):
        self.store = dist.HashStore()
        self.requests = Counter()

    def __getattr__(self, name):
        self.requests[name] += 1
        return getattr(self.store, name)


def test_rank_0_asks_for_the_plans_of_thousands_of_ranks_at_once():
    store = CountingStore()
    plan = {"waves": "1", "hash": "f" * 2000}
    for rank in range(1, 4096):
        other = {"waves": "2"} if rank == 4000 else {}
        store.store.set(f"fields/{rank}", json.dumps(plan | other))
    store.store.add("read", 4095)
    with pytest.raises(DisagreementError, match=r"waves: 1 on ranks 0, 1, .*; 2 on rank 4000\."):
        agree(store, rank=0, num_ranks=4096, fields=plan, patience=5.0)
    assert store.requests == {"set": 2, "check": 1, "multi_get": 1, "add": 1}


def test_a_rank_that_waits_asks_less_and_less_often():
    store = CountingStore()
    with pytest.raises(DisagreementError, match="rank 0 did not take part"):
        agree(store, rank=1, num_ranks=2, fields={}, patience=2.0)
    assert store.requests["check"] <= 16, "40 at the pace of the first pauses"

"""Compares the clocks of ranks, which may be on different machines."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

_ROUND_TRIPS = 20


def seconds_ahead(hosts: dist.ProcessGroup) -> float:
    """How far this rank's ``time.perf_counter`` is ahead of that of the group's first rank.

    Called by all ranks. Each asks the first one for its time; the answer of the quickest of some
    round trips is taken to be half a round trip old, so it is wrong by less than that.
    """
    told = torch.zeros(1, dtype=torch.float64)
    if hosts.rank() == 0:
        for peer in range(1, hosts.size()):
            for _ in range(_ROUND_TRIPS):
                dist.recv(told, group=hosts, group_src=peer)
                told.fill_(time.perf_counter())
                dist.send(told, group=hosts, group_dst=peer)
        return 0.0
    trips = []
    for _ in range(_ROUND_TRIPS):
        asked = time.perf_counter()
        dist.send(told, group=hosts, group_dst=0)
        dist.recv(told, group=hosts, group_src=0)
        answered = time.perf_counter()
        trips.append((answered - asked, (asked + answered) / 2 - told.item()))
    return min(trips)[1]

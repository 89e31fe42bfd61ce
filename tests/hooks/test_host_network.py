"""Groups made beside Megatron's wait as long as Megatron's do."""

from datetime import timedelta

import pytest
import torch.distributed as dist

from hanayo_megatron.megatron import host_network
from hanayo_megatron.runtime.communicators import timeout_of

PATIENCE = timedelta(minutes=77)


@pytest.fixture
def world():
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(minutes=5)
    )
    yield
    dist.destroy_process_group()


def test_the_timeout_of_a_group(world):
    assert timeout_of(dist.group.WORLD) == timedelta(minutes=5)
    assert timeout_of(dist.new_group([0], timeout=PATIENCE)) == PATIENCE


def test_groups_of_hosts_are_as_patient_as_megatrons(monkeypatch):
    pipeline, world = object(), dist.group.WORLD
    patience = {id(pipeline): timedelta(minutes=20), id(world): PATIENCE}
    monkeypatch.setattr(dist, "get_backend", lambda group=None: dist.Backend.NCCL)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [3, 5])
    monkeypatch.setattr(dist, "new_group", lambda *ranks, **how: how)
    monkeypatch.setattr(host_network, "timeout_of", lambda group: patience[id(group)])
    assert host_network.all_hosts.__wrapped__()["timeout"] == PATIENCE
    assert host_network.hosts_of.__wrapped__(pipeline)["timeout"] == timedelta(minutes=20)

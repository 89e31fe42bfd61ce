"""What happens before the first step, with stand-ins for NCCL."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state

from hanayo_megatron.errors import HanayoError, OneRankError
from hanayo_megatron.megatron import job as module
from hanayo_megatron.megatron.job import Job, start_hook
from hanayo_megatron.megatron.job_options import JobOptions
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.schedule import ScheduleSpec


@pytest.fixture
def calls(monkeypatch):
    """What was connected, in order, on a rank of a pipeline of four under NCCL."""
    made = []
    group = SimpleNamespace(rank=lambda: 1)
    monkeypatch.setattr(parallel_state, "get_pipeline_model_parallel_group", lambda: group)
    monkeypatch.setattr(dist, "get_backend", lambda group: dist.Backend.NCCL)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    for name in ("connect_group", "connect_pairs", "hosts_of", "collect_on_rank"):
        monkeypatch.setattr(module, name, lambda *a, name=name, **k: made.append(name) or name)
    return made


@pytest.mark.parametrize("communicators", ["pair", "group"])
def test_all_groups_are_connected_before_the_first_step(calls, communicators):
    job = Job(JobOptions(communicators=communicators))
    job.connect(Pipeline("hanayo", ScheduleSpec(pp=4, microbatches=4)))
    pairs = ["connect_pairs"] if communicators == "pair" else []
    assert calls == ["connect_group", *pairs, "hosts_of", "collect_on_rank"]
    assert job.pairs == (pairs[0] if pairs else None)


def test_ranks_agree_and_are_watched_before_groups_are_made():
    order = []
    job = SimpleNamespace(
        agree=lambda: order.append("agree"),
        watch=lambda: order.append("watch"),
        connect=lambda pipeline: order.append("connect"),
    )
    hook = start_hook(Pipeline("gpipe", ScheduleSpec(pp=2, microbatches=2)), job)
    assert hook.target == "megatron.core.parallel_state:initialize_model_parallel"
    hook.wrap(lambda *sizes, order_of: order.append((sizes, order_of)))(1, 2, order_of="tp-pp")
    assert order == ["agree", "watch", ((1, 2), "tp-pp"), "connect"]


@pytest.mark.parametrize(("error", "told"), [(OneRankError, ["no data"]), (HanayoError, [])])
def test_other_ranks_are_told_of_what_only_this_one_runs_into(monkeypatch, error, told):
    reasons = []
    watchdog = SimpleNamespace(
        ask_to_end=lambda: None,
        start=lambda: None,
        stop=lambda: None,
        fail=lambda reason, *, lost_connection: reasons.append(reason),
    )
    monkeypatch.setattr(module, "_is_real", lambda: True)
    monkeypatch.setattr(module, "_own_store", lambda purpose: None)
    monkeypatch.setattr(module, "_holds_store", lambda: False)
    monkeypatch.setattr(module, "Anchor", lambda meeting_point: None)
    monkeypatch.setattr(module, "Watchdog", lambda *args, **kwargs: watchdog)
    monkeypatch.setattr(module, "put_off_sigterm", lambda asked: None)
    monkeypatch.setattr(module.sys, "excepthook", None)
    monkeypatch.setattr(module.atexit, "register", lambda function: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    job = Job(JobOptions(watchdog_seconds=300))
    job.watch()

    def step():
        raise error("no data")

    with pytest.raises(error):
        job.watching(step)()
    assert reasons == told
    assert job.progress.mid_step
    assert job.progress.describe() == f"step 1: starting; then {error.__name__}: no data"


@pytest.mark.parametrize("chained", ["alone", "from it", "while it was handled", "of its own"])
def test_a_lost_connection_is_known_within_what_it_brought_about(chained):
    """As Megatron reports that data sets cannot be built when another rank dies meanwhile."""
    told = []
    watchdog = SimpleNamespace(fail=lambda reason, *, lost_connection: told.append(lost_connection))
    excepthook = module._telling(watchdog, lambda *error: None)
    try:
        try:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer")
        except RuntimeError as cause:
            if chained == "alone":
                raise
            if chained == "from it":
                raise ValueError("no data set") from cause
            if chained == "while it was handled":
                raise ValueError("no data set")  # noqa: B904
            raise ValueError("no data set") from None
    except Exception as error:
        excepthook(type(error), error, None)
    assert told == [chained != "of its own"]

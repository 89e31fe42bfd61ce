"""torch.distributed.pipelining as a judge: it loads our files, and we load its schedules."""

import csv
from unittest import mock

import pytest
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from hanayo_megatron.schedule.csv_file import load_schedule, write_schedule
from hanayo_megatron.schedule.registry import build_schedule, schedule_names
from hanayo_megatron.schedule.schedule import ScheduleError, ScheduleSpec

WITHOUT_REPLICAS = [name for name in schedule_names() if not name.startswith("chimera")]


def torch_runtime(num_ranks, num_stages, num_microbatches):
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.submod = 0, num_ranks, None
    stage.num_stages = num_stages
    return schedules._PipelineScheduleRuntime([stage] * 2, num_microbatches)


def write_torch(name, num_ranks, num_microbatches, path):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(get_schedule_ops(name, num_ranks, num_microbatches))


@pytest.mark.parametrize("name", WITHOUT_REPLICAS)
@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (4, 9), (3, 7)])
def test_torch_loads_ours(name, pp, microbatches, tmp_path):
    spec = ScheduleSpec(pp=pp, microbatches=microbatches, waves=2, chunks=3)
    schedule = build_schedule(name, spec)
    write_schedule(schedule, tmp_path / "ours.csv")
    stages = schedule.placement.num_stages
    runtime = torch_runtime(pp, stages, microbatches)
    runtime._load_csv(tmp_path / "ours.csv", format="compute_only")
    ranks = schedules._validate_schedule(runtime.pipeline_order, pp, stages, microbatches)
    assert tuple(ranks[stage] for stage in range(stages)) == schedule.placement.rank_of
    runtime._dump_csv(tmp_path / "back.csv", format="compute_only")
    assert load_schedule(tmp_path / "back.csv").orders == schedule.orders


@pytest.mark.parametrize(
    "name", ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
)
@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (3, 6), (4, 8), (4, 12), (8, 16)])
def test_we_load_torchs(name, pp, microbatches, tmp_path):
    write_torch(name, pp, microbatches, tmp_path / "torch.csv")
    schedule = load_schedule(tmp_path / "torch.csv")
    assert schedule.num_microbatches == microbatches
    assert schedule.placement.num_stages == 2 * pp
    up = range(pp) if name.startswith(("Inter", "Loop")) else reversed(range(pp))
    assert schedule.placement.rank_of == (*range(pp), *up)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("Interleaved1F1B", "interleaved"), ("DualPipeV", "dualpipe-v")]
)
@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (3, 6), (4, 8), (4, 12), (8, 16)])
def test_the_same_schedule_is_the_same(theirs, ours, pp, microbatches, tmp_path):
    write_torch(theirs, pp, microbatches, tmp_path / "torch.csv")
    schedule = build_schedule(ours, ScheduleSpec(pp=pp, microbatches=microbatches))
    assert load_schedule(tmp_path / "torch.csv").orders == schedule.orders


def test_transfers_are_refused(tmp_path):
    with open(tmp_path / "torch.csv", "w", newline="") as file:
        rows = get_schedule_ops("Interleaved1F1B", 2, 4, with_comms=True)
        csv.writer(file).writerows(rows)
    with pytest.raises(ScheduleError, match=r"0SEND_F0 +stage, kind"):
        load_schedule(tmp_path / "torch.csv")

"""The executor gives the gradients of one rank without a pipeline, on a transport like NCCL."""

import pytest
import torch
from pipeline_model import run_pipeline, run_reference

from hanayo_megatron.schedule import ScheduleSpec, build_schedule

CASES = [
    (name, pp, waves, microbatches)
    for name in ("gpipe", "1f1b", "hanayo")
    for pp in (1, 2, 3, 4)
    for waves in ((1, 2, 3) if name == "hanayo" else (1,))
    for microbatches in (1, 2, 3, 5, 8, 9)
]


@pytest.mark.parametrize("communicators", ["pair", "group"])
@pytest.mark.parametrize(("name", "pp", "waves", "microbatches"), CASES)
def test_gradients_equal_a_run_on_one_rank(name, pp, waves, microbatches, communicators):
    schedule = build_schedule(name, ScheduleSpec(pp=pp, microbatches=microbatches, waves=waves))
    expected, expected_losses = run_reference(schedule)
    gradients, losses, workers, stats = run_pipeline(schedule, communicators=communicators)

    assert losses == expected_losses
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    for rank, worker in enumerate(workers):
        assert sorted(worker.synchronised) == list(schedule.placement.stages_of[rank])
    assert all(s.live_activations == 0 and s.receive_buffers == 0 for s in stats)

"""What ranks compare before they train."""

from argparse import Namespace
from pathlib import Path

from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.megatron.plan_fields import plan_fields
from hanayo_megatron.schedule.schedule import ScheduleSpec

PIPELINE = Pipeline("hanayo", ScheduleSpec(pp=2, microbatches=4))


def fields(**given):
    defaults = {
        "num_waves": 1,
        "num_chunks": None,
        "pipeline_timeline": None,
        "pipeline_model_parallel_layout": None,
    }
    return plan_fields(PIPELINE, Namespace(**{**defaults, **given}))


def test_a_rank_that_measures_no_timeline_is_found_but_not_another_folder():
    """Those that measure would wait for it in a barrier."""
    one, other = (fields(pipeline_timeline=Path(folder)) for folder in ("/a", "/b"))
    assert one == other
    changed = {name for name, value in fields().items() if one[name] != value}
    assert changed == {"--pipeline-timeline"}

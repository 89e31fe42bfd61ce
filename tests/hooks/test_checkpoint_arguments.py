"""Optimizer state that was saved by position goes to the schedule that saved it, or nowhere."""

from argparse import Namespace

import pytest

from hanayo_megatron.megatron.checkpoints import CheckpointError, check_optimizer_format


def arguments(**given):
    known = {
        "load": "/saved",
        "use_distributed_optimizer": True,
        "dist_ckpt_optim_fully_reshardable": False,
        "finetune": False,
        "no_load_optim": None,
        "no_save_optim": None,
        "pipeline_schedule": "hanayo",
        "num_waves": 1,
        "num_chunks": None,
        "num_layers": 4,
        "mtp_num_layers": None,
        "virtual_pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_layout": "Et|t|t|tL",
    }
    return Namespace(**{**known, **given})


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ({"pipeline_schedule": "interleaved"}, "--pipeline-schedule interleaved"),
        ({"num_waves": 2}, "--num-waves 2"),
        ({"pipeline_model_parallel_layout": "Ett|t|t|L"}, "--pipeline-model-parallel-layout Ett"),
        ({"pipeline_schedule": "somebody's"}, "--pipeline-schedule somebody's"),
        ({"pipeline_schedule": None}, "under Megatron's own schedule"),
    ],
)
def test_another_placement_is_named(saved, words):
    with pytest.raises(CheckpointError, match="fully-reshardable, or load with") as refusal:
        check_optimizer_format(arguments(), arguments(**saved))
    assert words in str(refusal.value)


def test_state_of_megatrons_own_interleaving_fits_ours():
    """The same stages on the same ranks; Megatron's arguments have none of the plug-in's."""
    plain = arguments(pipeline_model_parallel_layout=None)
    del plain.pipeline_schedule, plain.num_waves, plain.num_chunks
    ours = arguments(pipeline_schedule="circular")
    check_optimizer_format(ours, plain)


@pytest.mark.parametrize(
    ("ours", "saved"),
    [
        ({}, {}),
        ({"num_waves": None}, {}),
        ({}, {"num_waves": 2, "dist_ckpt_optim_fully_reshardable": True}),
        ({"use_distributed_optimizer": False}, {"num_waves": 2}),
        ({"no_load_optim": True}, {"num_waves": 2}),
        ({"finetune": True}, {"num_waves": 2}),
        ({}, {"num_waves": 2, "no_save_optim": True}),
    ],
)
def test_what_may_be_loaded(ours, saved):
    check_optimizer_format(arguments(**ours), arguments(**saved))

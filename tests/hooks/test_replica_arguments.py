"""Flags that do not know of a second copy of the model are refused by name."""

from argparse import Namespace

import pytest

from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.megatron.replica_arguments import check_replica_flags, chunks_named
from hanayo_megatron.schedule.schedule import ScheduleError, ScheduleSpec

SPEC = ScheduleSpec(pp=4, microbatches=8)


def megatron(**given):
    defaults = {
        "overlap_param_gather": False,
        "align_param_gather": True,
        "moe_router_load_balancing_type": "aux_loss",
        "pipeline_model_parallel_layout": "Et|t|t|tL",
        "num_virtual_stages_per_pipeline_rank": None,
    }
    return Namespace(**{**defaults, **given})


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"num_distributed_optimizer_instances": 2}, "--num-distributed-optimizer-instances 2"),
        ({"overlap_param_gather_with_optimizer_step": True}, "with-optimizer-step"),
        ({"optimizer": "dist_muon"}, "--optimizer dist_muon"),
        (
            {"optimizer": "muon", "use_distributed_optimizer": True},
            "--optimizer muon --use-distributed-optimizer",
        ),
        ({"qk_clip": True}, "--qk-clip"),
        ({"use_torch_fsdp2": True}, "--use-torch-fsdp2"),
        ({"init_model_with_meta_device": True}, "--init-model-with-meta-device"),
        ({"log_params_norm": True}, "--log-params-norm"),
        ({"mtp_num_layers": 1}, "--mtp-num-layers"),
        ({"hybrid_layer_pattern": "M*|M*"}, "--hybrid-layer-pattern"),
        ({"overlap_param_gather": True, "align_param_gather": False}, "--no-align-param-gather"),
        (
            {"moe_router_load_balancing_type": ["aux_loss", "global_aux_loss"]},
            "--moe-router-load-balancing-type global_aux_loss",
        ),
        (
            {"moe_router_load_balancing_type": "quantile_balancing"},
            "--moe-router-load-balancing-type quantile_balancing",
        ),
    ],
)
def test_refused_for_two_copies_only(given, flag):
    args = megatron(**given)
    with pytest.raises(ScheduleError) as error:
        check_replica_flags(args, Pipeline("chimera", SPEC))
    assert flag in str(error.value)
    assert "--pipeline-schedule chimera" in str(error.value)
    check_replica_flags(args, Pipeline("hanayo", SPEC))


def test_the_rest_passes():
    check_replica_flags(megatron(overlap_param_gather=True), Pipeline("chimera", SPEC))
    for given in ({"optimizer": "muon"}, {"optimizer": "sgd", "use_distributed_optimizer": True}):
        check_replica_flags(megatron(**given), Pipeline("chimera", SPEC))


@pytest.mark.parametrize(("name", "chunks"), [("chimera", 2), ("hanayo", None)])
def test_megatron_is_told_of_two_chunks_while_it_validates(name, chunks):
    args = megatron()
    before = vars(args).copy()
    with chunks_named(args, Pipeline(name, SPEC)):
        assert args.num_virtual_stages_per_pipeline_rank == chunks
        assert args.pipeline_model_parallel_layout == (None if chunks else "Et|t|t|tL")
    assert vars(args) == before

"""Flags are checked against Megatron's own, and each error names values and what is legal."""

import argparse

import pytest
from megatron.training.arguments import add_megatron_arguments

from hanayo_megatron.megatron.arguments import add_arguments, resolve_pipeline
from hanayo_megatron.megatron.refused_flags import CHOICES
from hanayo_megatron.megatron.refused_flags import REFUSED as REFUSED_FLAGS
from hanayo_megatron.schedule.schedule import ScheduleError


def parsed(*flags, **megatron):
    """Our flags parsed, beside the few of Megatron's that matter, as they are before validation."""
    args = add_arguments(argparse.ArgumentParser()).parse_args(flags)
    defaults = {
        "pipeline_model_parallel_size": 4,
        "tensor_model_parallel_size": 1,
        "context_parallel_size": 1,
        "world_size": 4,
        "rank": 0,
        "micro_batch_size": 1,
        "global_batch_size": 8,
        "num_layers": 16,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 32,
        "vocab_size": 256,
        "mtp_num_layers": None,
        "pipeline_model_parallel_layout": None,
        "cuda_graph_impl": "none",
        "load": None,
        "finetune": False,
        "exit_on_missing_checkpoint": False,
    }
    vars(args).update({**defaults, **megatron})
    return args


def test_no_flag_no_pipeline():
    assert resolve_pipeline(parsed()) is None


def test_waves_are_laid_out_in_stage_order():
    args = parsed("--pipeline-schedule", "hanayo", "--num-waves", "2")
    pipeline = resolve_pipeline(args)
    assert pipeline.placement.rank_of == (0, 1, 2, 3, 3, 2, 1, 0) * 2
    assert pipeline.num_chunks == 4
    assert args.pipeline_model_parallel_layout == "Et|t|t|t|t|t|t|t|t|t|t|t|t|t|t|tL"
    assert pipeline.spec.microbatches == 8
    assert args.overlap_p2p_comm


def test_linear_schedules_need_no_layout():
    args = parsed("--pipeline-schedule", "dapple")
    assert resolve_pipeline(args).num_chunks == 1
    assert args.pipeline_model_parallel_layout is None


def test_the_users_own_split_is_kept():
    split = "Et|tttt|tt|t|t|tt|tttt|tL"
    args = parsed("--pipeline-schedule", "hanayo", pipeline_model_parallel_layout=split)
    resolve_pipeline(args)
    assert args.pipeline_model_parallel_layout == split


def test_an_uneven_count_is_balanced_over_the_ranks():
    """16 stages on 4 ranks; rank 0 has the head, so each rank gets 4 or 5 layers of 18."""
    args = parsed("--pipeline-schedule", "hanayo", "--num-waves", "2", num_layers=18)
    pipeline = resolve_pipeline(args)
    stages = [s.count("t") for s in args.pipeline_model_parallel_layout.split("|")]
    ranks = [sum(stages[s] for s in held) for held in pipeline.placement.stages_of]
    assert sum(stages) == 18
    assert sorted(ranks) == [4, 4, 5, 5]
    assert ranks[0] == 4


def test_flags_that_count_the_ends_as_layers():
    """14 layers and both ends are 16: two for each of 8 stages, as Megatron counts them."""
    args = parsed(
        *("--pipeline-schedule", "hanayo"),
        num_layers=14,
        account_for_embedding_in_pipeline_split=True,
        account_for_loss_in_pipeline_split=True,
    )
    resolve_pipeline(args)
    assert args.pipeline_model_parallel_layout == "Et|tt|tt|tt|tt|tt|tt|tL"
    assert not args.account_for_embedding_in_pipeline_split
    assert not args.account_for_loss_in_pipeline_split


def test_further_predicted_tokens_are_in_the_last_stage():
    args = parsed("--pipeline-schedule", "hanayo", mtp_num_layers=2)
    resolve_pipeline(args)
    assert args.pipeline_model_parallel_layout.endswith("mmL")
    assert args.pipeline_model_parallel_layout.count("m") == 2


HANAYO = ("--pipeline-schedule", "hanayo")


@pytest.mark.parametrize(
    ("given", "placed"),
    [
        ("M*M-M*M-", "M|*|M|-|M|*|M|-"),
        ("MM|*-|M|M*|M|-|M|*", "MM|*-|M|M*|M|-|M|*"),
        # Rank 0 has the head; of the others the later stages get more.
        ("M*M-M*M-M*", "M|*|M|-|M|*M|-M|*"),
    ],
)
def test_a_hybrid_pattern_gets_a_segment_a_stage(given, placed):
    args = parsed(*HANAYO, hybrid_layer_pattern=given, num_layers=None)
    resolve_pipeline(args)
    assert args.hybrid_layer_pattern == placed
    assert args.pipeline_model_parallel_layout is None


LAYOUT = "Et|tttt|tt|t|t|tt|tttt|tL"
REFUSED = [
    (
        ("--num-waves", "2"),
        {},
        ["--num-waves 2 needs --pipeline-schedule NAME, with a schedule that has waves"],
    ),
    (
        ("--pipeline-schedule", "hanyo"),
        {},
        ["unknown pipeline schedule 'hanyo'", "did you mean 'hanayo'", "gpipe"],
    ),
    (HANAYO, {"pipeline_model_parallel_size": 1}, ["at least 2, got 1"]),
    ((*HANAYO, "--num-waves", "0"), {}, ["waves", "at least 1, got 0"]),
    (
        (*HANAYO, "--num-waves", "3"),
        {},
        ["--num-layers 16", "24 stages", "4 ranks", "at least 24", "--num-waves of at most 2"],
    ),
    (HANAYO, {"num_layers": 7}, ["--num-layers 7", "8 stages", "at least 8"]),
    (HANAYO, {"num_layers": None}, ["needs --num-layers"]),
    (
        HANAYO,
        {"num_layers_per_virtual_pipeline_stage": 2},
        ["--num-layers-per-virtual-pipeline-stage 2 conflicts"],
    ),
    (HANAYO, {"pipeline_model_parallel_layout": "Et|t|t|tL"}, ["has 4 stages", "needs 8"]),
    (
        HANAYO,
        {"pipeline_model_parallel_layout": LAYOUT, "account_for_loss_in_pipeline_split": True},
        ["--account-for-loss-in-pipeline-split means nothing beside", LAYOUT],
    ),
    (
        HANAYO,
        {"pipeline_model_parallel_layout": "Et|t|t|t|t|t|tm|L"},
        ["Et|t|t|t|t|t|tm|L", "outside of the last stage", "before L"],
    ),
    (
        ("--pipeline-schedule", "1f1b", "--num-waves", "2"),
        {},
        ["--num-waves 2 means nothing to schedule '1f1b'"],
    ),
    ((*HANAYO, "--num-chunks", "2"), {}, ["--num-chunks 2 means nothing"]),
    (HANAYO, {"hybrid_layer_pattern": "M*|M-"}, ["M*|M-", "2 segments", "needs 8 on 4 ranks"]),
    (HANAYO, {"hybrid_layer_pattern": "M*M-"}, ["M*M-", "4 layers", "at least 8"]),
    (HANAYO, {"hybrid_layer_pattern": "M*M-M*M-/M"}, ["further tokens", "GPT models only"]),
    (HANAYO, {"decoder_num_layers": 4}, ["--decoder-num-layers", "T5"]),
    (HANAYO, {"cuda_graph_impl": "local"}, ["--cuda-graph-impl local"]),
    (
        HANAYO,
        {"ckpt_format": "torch"},
        ["--ckpt-format torch does not work", "Use --ckpt-format torch_dist"],
    ),
    (
        HANAYO,
        {"tensor_parallel_num_weight_shards": 4, "tensor_model_parallel_size": 2},
        ["--tensor-parallel-num-weight-shards 4 does not work", "one order"],
    ),
    (
        HANAYO,
        {"expert_tensor_parallel_num_weight_shards": 2},
        ["--expert-tensor-parallel-num-weight-shards 2 does not work"],
    ),
    (
        HANAYO,
        {"multiple_validation_sets": True},
        ["--multiple-validation-sets does not work", "2 chunks"],
    ),
    (HANAYO, {"overlap_moe_expert_parallel_comm": True}, ["--overlap-moe-expert-parallel-comm"]),
    (HANAYO, {"load": "/gone", "finetune": True}, ["--load /gone", "no checkpoint", "--finetune"]),
    (
        (*HANAYO, "--pipeline-schedule-module", "no_such_module"),
        {},
        ["'no_such_module' cannot be imported", "PYTHONPATH"],
    ),
]


@pytest.mark.parametrize(("flags", "megatron", "words"), REFUSED)
def test_refusals_name_the_values(flags, megatron, words):
    with pytest.raises(ScheduleError) as refusal:
        resolve_pipeline(parsed(*flags, **megatron))
    for word in words:
        assert word in str(refusal.value)


def test_weights_in_as_many_shards_as_tensor_parallel_ranks_are_plain_ones():
    resolve_pipeline(
        parsed(*HANAYO, tensor_parallel_num_weight_shards=2, tensor_model_parallel_size=2)
    )


def test_validation_sets_of_a_single_chunk_are_kept_apart_by_megatron():
    resolve_pipeline(parsed("--pipeline-schedule", "1f1b", multiple_validation_sets=True))


def test_masks_that_scripts_may_not_read_everywhere_are_named(caplog):
    masks = {"reset_attention_mask": True, "transformer_impl": "local"}
    resolve_pipeline(parsed("--pipeline-schedule", "1f1b", **masks, pipeline_model_parallel_size=2))
    assert not caplog.messages
    resolve_pipeline(parsed(*HANAYO, **masks))
    assert "--reset-attention-mask works in stages" in caplog.messages[0]


SHARDS = ("tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards")


@pytest.mark.parametrize("name", [*REFUSED_FLAGS, *CHOICES, *SHARDS])
def test_refused_flags_exist_in_megatron(name):
    """A renamed flag would be refused no more, without a word."""
    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    options = [
        o for action in parser._actions if action.dest == name for o in action.option_strings
    ]
    args = parsed(*HANAYO, **{name: 3})
    with pytest.raises(ScheduleError, match="does not work with") as refusal:
        resolve_pipeline(args)
    assert str(refusal.value).split()[0] in options


def test_help_can_be_read():
    """Megatron's own, of which one text has a bare percent sign, and the plug-in's."""
    parser = add_megatron_arguments(argparse.ArgumentParser())
    with pytest.raises(ValueError, match="format"):
        parser.format_help()
    text = " ".join(add_arguments(parser).format_help().split())
    assert "--pipeline-schedule NAME Train under this schedule. Known: 1f1b" in text
    assert "--moe-paged-stash-buffer-size-factor-cuda" in text

"""What `megatron.training.pretrain` asks for to train a GPT: data, one forward step, the loss.

First and last are asked of the chunk, never of the rank, so that any placement of stages works:
under waves one rank holds the first and the last stage.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from megatron.core.rerun_state_machine import get_rerun_state_machine
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
from megatron.core.transformer.multi_token_prediction import get_mtp_ranks, mtp_on_this_rank
from megatron.core.utils import (
    get_attr_wrapped_model,
    get_batch_on_this_cp_rank,
    get_batch_on_this_tp_rank,
)
from megatron.training import get_args, get_timers
from megatron.training.arguments import core_transformer_config_from_args
from megatron.training.utils import get_blend_and_blend_per_split, is_first_or_last_pipeline_stage

from hanayo_megatron.errors import HanayoError

_BATCH_KEYS = ("tokens", "labels", "loss_mask", "attention_mask", "position_ids")
_SPIKY_LOSS_FACTOR = 10

# Options of Megatron's own pretrain_gpt.py that need other datasets or packed batches.
_NOT_HERE = ("sft", "fim_data", "hybrid_context_parallel", "dataloader_inter_document_masking")


def check_supported(args: argparse.Namespace) -> None:
    """Raise HanayoError if `args` ask for a kind of GPT training that this entry does not do."""
    flags = [f"--{name.replace('_', '-')}" for name in _NOT_HERE if getattr(args, name, False)]
    if flags:
        raise HanayoError(
            f"hanayo_megatron.pretrain_gpt trains on plain token sequences and has no "
            f"{', '.join(flags)}. Use Megatron-LM's own script: "
            "python -m hanayo_megatron.run pretrain_gpt.py ..."
        )


def build_datasets(
    samples: tuple[int, int, int], vp_stage: int | None = None
) -> tuple[GPTDataset | None, GPTDataset | None, GPTDataset | None]:
    """The train, validation and test datasets of one chunk, None where the chunk reads no data.

    Args:
        samples: how many samples are needed of each.
        vp_stage: the chunk; None where a rank has only one.
    """
    args = get_args()
    dataset = MockGPTDataset if args.mock_data else GPTDataset
    reads_data = partial(_reads_data, vp_stage)
    return BlendedMegatronDatasetBuilder(
        dataset, samples, reads_data, _dataset_config(args)
    ).build()


# Megatron then calls it on every rank, not on tensor-parallel rank 0 alone.
build_datasets.is_distributed = True


def forward_step(
    data_iterator: Iterator, model: torch.nn.Module, return_schedule_plan: bool = False
) -> tuple[torch.Tensor, partial]:
    """Run one microbatch through one chunk.

    Args:
        data_iterator: the chunk's own; not advanced by chunks in the middle of the model.
        model: the chunk, wrapped or not.
        return_schedule_plan: Megatron's overlap of expert communication; not supported.

    Returns:
        The chunk's output, and the loss function for it: from the last stage's output (the loss
        of each token) to (sum of losses, token count, the values to log).
    """
    if return_schedule_plan:
        raise HanayoError("--overlap-moe-expert-parallel-comm is not supported by this entry")
    timers = get_timers()
    timers("batch-generator", log_level=2).start()
    batch = _get_batch(data_iterator, model)
    timers("batch-generator").stop()
    output = model(
        batch["tokens"],
        batch["position_ids"],
        batch["attention_mask"],
        labels=batch["labels"],
        loss_mask=batch["loss_mask"],
    )
    return output, partial(_loss, batch["loss_mask"])


def embedding_ranks(pp_ranks: list[int]) -> list[int]:
    """Those of a pipeline's global ranks that hold a copy of the word embeddings."""
    args = get_args()
    ranks = {pp_ranks[0], *get_mtp_ranks(pp_ranks, core_transformer_config_from_args(args))}
    if not args.untie_embeddings_and_output_weights:
        ranks.add(pp_ranks[-1])
    return sorted(ranks)


def _dataset_config(args: argparse.Namespace) -> GPTDatasetConfig:
    blend, blend_per_split = get_blend_and_blend_per_split(args)
    return GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=blend,
        blend_per_split=blend_per_split,
        split=args.split,
        multiple_validation_sets=args.multiple_validation_sets,
        full_validation=args.full_validation,
        num_dataset_builder_threads=args.num_dataset_builder_threads,
        path_to_cache=args.data_cache_path,
        mmap_bin_files=args.mmap_bin_files,
        tokenizer=build_tokenizer(args),
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        eod_mask_loss=args.eod_mask_loss,
        create_attention_mask=args.create_attention_mask_in_dataloader,
        object_storage_cache_path=args.object_storage_cache_path,
        mid_level_dataset_surplus=args.mid_level_dataset_surplus,
        allow_ambiguous_pad_tokens=args.allow_ambiguous_pad_tokens,
        context_parallel_size=args.context_parallel_size,
        data_parallel_size=args.data_parallel_size,
    )


def _reads_data(vp_stage: int | None) -> bool:
    if parallel_state.get_tensor_model_parallel_rank() != 0:
        return False
    return (
        is_first_or_last_pipeline_stage(vp_stage)
        or _predicts_more_tokens(vp_stage)
        or _masks_documents()
    )


def _masks_documents() -> bool:
    """Whether every layer needs the data's mask, without which a token sees other documents."""
    args = get_args()
    return args.reset_attention_mask and args.transformer_impl == "local"


def _predicts_more_tokens(vp_stage: int | None) -> bool:
    config = core_transformer_config_from_args(get_args())
    return mtp_on_this_rank(
        layout=config.pipeline_model_parallel_layout,
        mtp_num_layers=config.mtp_num_layers,
        ignore_virtual=False,
        vp_stage=vp_stage,
    )


def _get_batch(data_iterator: Iterator, model: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """The chunk's part of the next microbatch: tensors [microbatch, sequence], or None."""
    args = get_args()
    is_first = get_attr_wrapped_model(model, "pre_process")
    is_last = get_attr_wrapped_model(model, "post_process")
    needs_all = get_attr_wrapped_model(model, "mtp_process") or _masks_documents()
    if not (is_first or is_last or needs_all):
        return dict.fromkeys(_BATCH_KEYS)

    batch: dict[str, torch.Tensor | None] = {}
    tp_rank = parallel_state.get_tensor_model_parallel_rank()
    if tp_rank == 0:
        sample = next(data_iterator)
        present = {key: sample[key] for key in _BATCH_KEYS if sample.get(key) is not None}
        batch = dict.fromkeys(_BATCH_KEYS)
        batch.update({key: value.cuda(non_blocking=True) for key, value in present.items()})
    batch = get_batch_on_this_tp_rank(
        batch,
        broadcast_src_rank=parallel_state.get_tensor_model_parallel_src_rank(),
        broadcast_group=parallel_state.get_tensor_model_parallel_group(),
        has_cu_seqlens=False,
        is_hybrid_cp=False,
        create_attention_mask_in_dataloader=args.create_attention_mask_in_dataloader,
        cp_size=args.context_parallel_size,
        tp_rank=tp_rank,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        mtp_on_this_rank=needs_all,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=is_first,
        is_pipeline_last_stage=is_last,
    )
    return get_batch_on_this_cp_rank(
        batch, is_hybrid_cp=False, cp_group=parallel_state.get_context_parallel_group()
    )


def _loss(
    loss_mask: torch.Tensor, token_losses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    mask = loss_mask.view(-1).float()
    loss = torch.sum(token_losses.view(-1).float() * mask)
    tokens = mask.sum().detach().to(torch.int)
    _check(loss)
    report = torch.cat([loss.detach().clone().view(1), tokens.view(1)])
    return loss, tokens, {"lm loss": report}


def _check(loss: torch.Tensor) -> None:
    args = get_args()
    validate = partial(get_rerun_state_machine().validate_result, result=loss, tolerance=0.0)
    if args.check_for_nan_in_loss_and_grad:
        validate(rejection_func=torch.isnan, message="the loss is NaN", fatal=True)
        validate(rejection_func=torch.isinf, message="the loss is infinite", fatal=True)
    if args.check_for_spiky_loss:
        is_spike = partial(
            get_rerun_state_machine().is_unexpectedly_large,
            threshold=_SPIKY_LOSS_FACTOR,
            context="loss",
        )
        validate(rejection_func=is_spike, message="the loss jumped up", fatal=False)

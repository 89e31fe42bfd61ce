"""What all ranks must have in common for a schedule to run, as text."""

from __future__ import annotations

import argparse
import hashlib

import torch
from megatron.core import __version__ as megatron_version

import hanayo_megatron
from hanayo_megatron import flags
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.schedule.schedule import Schedule

_ARGUMENTS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    "rampup_batch_size",
    "params_dtype",
    "sequence_parallel",
    "variable_seq_lengths",
    "untie_embeddings_and_output_weights",
    "use_distributed_optimizer",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "calculate_per_token_loss",
    "deallocate_pipeline_outputs",
    "train_iters",
    "eval_interval",
    "eval_iters",
    "save_interval",
    "pipeline_communicators",
    "pipeline_debug",
    "pipeline_timeline_steps",
)


def plan_fields(pipeline: Pipeline, args: argparse.Namespace) -> dict[str, str]:
    """Plan, versions, and the arguments that decide what ranks send each other."""
    spec = pipeline.spec
    schedule = pipeline.lowered(spec.microbatches, False).schedule
    return {
        flags.SCHEDULE: pipeline.name,
        flags.WAVES: str(args.num_waves),
        flags.CHUNKS: str(args.num_chunks),
        "ranks of the pipeline (P)": str(spec.pp),
        "stages a rank (V)": str(pipeline.num_chunks),
        "microbatches (M)": str(spec.microbatches),
        **{f"--{name.replace('_', '-')}": str(getattr(args, name, None)) for name in _ARGUMENTS},
        # Ranks wait for each other to measure; the folder may be another one on each machine.
        flags.TIMELINE: "not given" if args.pipeline_timeline is None else "given",
        "--pipeline-model-parallel-layout": str(args.pipeline_model_parallel_layout),
        "version of hanayo_megatron": hanayo_megatron.__version__,
        "version of megatron-core": megatron_version,
        "version of torch": torch.__version__,
        "rank of every stage": ",".join(map(str, pipeline.placement.rank_of)),
        "hash of the orders": _hash_of_orders(schedule),
    }


def _hash_of_orders(schedule: Schedule) -> str:
    text = ";".join(" ".join(map(str, order)) for order in schedule.orders)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

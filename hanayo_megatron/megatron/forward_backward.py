"""The drop-in for Megatron's pipelined forward_backward functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from megatron.core.pipeline_parallel import schedules
from megatron.core.utils import get_model_config

from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.megatron.agreement import agree_on_step
from hanayo_megatron.megatron.further_tokens import move_further_token_losses
from hanayo_megatron.megatron.gradient_sync import GradientSync, ParameterSync
from hanayo_megatron.megatron.hooks import Hook
from hanayo_megatron.megatron.job import Job
from hanayo_megatron.megatron.losses import collect_on_rank
from hanayo_megatron.megatron.microbatch_data import MicrobatchReader
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.megatron.replica_gradients import ReplicaGradientSync, ReplicaParameterSync
from hanayo_megatron.megatron.stage_worker import MegatronWorker, StepRequest
from hanayo_megatron.runtime.executor import Executor
from hanayo_megatron.runtime.torch_transport import transport_for
from hanayo_megatron.schedule.action import Kind
from hanayo_megatron.schedule.schedule import Schedule


def schedule_hooks(pipeline: Pipeline, job: Job) -> list[Hook]:
    """Hooks that make get_forward_backward_func return ours for a pipeline."""
    parameters = (
        "forward_step_func",
        "data_iterator",
        "model",
        "num_microbatches",
        "seq_length",
        "micro_batch_size",
        "forward_only",
        "collect_non_loss_data",
        "first_val_step",
        "adjust_tensor_shapes_fn",
        "p2p_communicator",
        "pg_collection",
        "force_all_reduce",
    )
    module = "megatron.core.pipeline_parallel.schedules"
    return [
        Hook(f"{module}:{name}", parameters, lambda original: forward_backward(pipeline, job))
        for name in (
            "forward_backward_pipelining_with_interleaving",
            "forward_backward_pipelining_without_interleaving",
        )
    ]


def forward_backward(pipeline: Pipeline, job: Job | None = None) -> Callable[..., list]:
    """A function with the contract of Megatron's forward_backward functions."""
    job = job or Job()

    def forward_backward_func(
        *,
        forward_step_func: Callable,
        data_iterator: Any,
        model: Any,
        num_microbatches: int,
        seq_length: int,
        micro_batch_size: int,
        decoder_seq_length: int | None = None,
        forward_only: bool = False,
        collect_non_loss_data: bool = False,
        first_val_step: bool | None = None,
        adjust_tensor_shapes_fn: Callable | None = None,
        p2p_communicator: Any = None,
        pg_collection: Any = None,
        force_all_reduce: bool = False,
    ) -> list:
        """One step over all microbatches; the collected losses on the rank that logs, else []."""
        chunks = model if isinstance(model, list) else [model]
        iterators = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        config = get_model_config(chunks[0])
        if (p2p_communicator is None) != (pg_collection is None):
            raise ValueError(
                "p2p_communicator and pg_collection must be given together or not at all"
            )
        if pg_collection is None:
            pg_collection = schedules._build_default_pg_collection()
        _check(pipeline, config, chunks, iterators)
        job.progress.note("comparing the number of microbatches with all ranks")
        announces = config.variable_seq_lengths or adjust_tensor_shapes_fn is not None
        agree_on_step(num_microbatches=num_microbatches, announces_shapes=announces)
        if announces:
            lowered = pipeline.announced(num_microbatches, forward_only, job.communicator)
        else:
            lowered = pipeline.lowered(num_microbatches, forward_only)
        readers = _readers(pipeline, lowered.schedule, iterators, pg_collection.pp.rank())
        shape = _tensor_shape(config, pg_collection, seq_length, micro_batch_size)
        if adjust_tensor_shapes_fn is not None:
            # Called as Megatron does: models learn of their shapes by it.
            known = () if config.variable_seq_lengths else shape
            adjust_tensor_shapes_fn([known], [known])
        request = StepRequest(
            forward_step_func=forward_step_func,
            data_iterators=readers,
            model=chunks,
            config=config,
            num_microbatches=num_microbatches,
            tensor_shape=shape,
            cp_size=pg_collection.cp.size(),
            forward_only=forward_only,
            collect_non_loss_data=collect_non_loss_data,
            first_val_step=first_val_step,
        )
        timers = config.timers
        if timers is not None:
            timers("forward-backward", log_level=1).start(barrier=config.barrier_with_L1_time)
        losses = _step(
            pipeline, job, lowered, request, pg_collection, force_all_reduce=force_all_reduce
        )
        for reader in readers:
            if isinstance(reader, MicrobatchReader):
                reader.finish()
        if timers is not None:
            timers("forward-backward").stop()
        return losses

    return job.watching(forward_backward_func)


def _step(
    pipeline: Pipeline,
    job: Job,
    lowered: LoweredSchedule,
    request: StepRequest,
    pg_collection: Any,
    *,
    force_all_reduce: bool,
) -> list:
    placement, config, pp_group = pipeline.placement, request.config, pg_collection.pp
    rank = pp_group.rank()
    finalize = None if request.forward_only else config.finalize_model_grads_func
    holds_loss = rank in placement.last_ranks
    if finalize is not None:
        embedding = schedules.clear_embedding_activation_buffer(config, request.model, holds_loss)

    with _gradient_sync(pipeline, request) as gradient_sync:
        worker = MegatronWorker(
            pipeline,
            request,
            microbatches_of_replica=lowered.schedule.microbatches_of_replica,
            gradient_sync=gradient_sync,
            parameter_sync=_parameter_sync(pipeline, lowered.schedule, request, rank),
        )
        transport = transport_for(pp_group, num_stages=placement.num_stages, pairs=job.pairs)
        with job.executing(lowered, pp_group) as observers:
            Executor(
                lowered,
                rank=rank,
                worker=worker,
                messenger=job.messenger(transport),
                observers=observers,
            ).run()

    if finalize is not None:
        schedules.finish_embedding_wgrad_compute(config, embedding, holds_loss, pg_collection.tp)
        num_tokens = None
        if config.calculate_per_token_loss:
            # Megatron's finalize reads the count on the last rank; here every rank has it.
            num_tokens = worker.num_tokens
            dist.all_reduce(num_tokens, group=pp_group)
        finalize(
            request.model,
            num_tokens,
            pg_collection=pg_collection,
            force_all_reduce=force_all_reduce,
        )
    if getattr(config, "mtp_num_layers", None):
        move_further_token_losses(
            sources=placement.last_ranks,
            target=placement.num_ranks - 1,
            group=pp_group,
            outlines=job.outlines,
        )
    return collect_on_rank(
        worker.collected,
        sources=placement.last_ranks,
        target=placement.num_ranks - 1,
        group=pp_group,
        outlines=job.outlines,
    )


def _gradient_sync(pipeline: Pipeline, request: StepRequest) -> GradientSync | ReplicaGradientSync:
    if pipeline.placement.replicas > 1 and not request.forward_only:
        return ReplicaGradientSync(request.config, request.model)
    return GradientSync(request.config, request.model)


def _parameter_sync(
    pipeline: Pipeline, schedule: Schedule, request: StepRequest, rank: int
) -> ParameterSync | ReplicaParameterSync:
    used = _first_uses(pipeline, schedule, rank)
    if pipeline.placement.replicas > 1 and not request.forward_only:
        idle = [chunk for chunk in range(pipeline.num_chunks) if chunk not in used]
        return ReplicaParameterSync(request.config, request.model, idle=idle)
    return ParameterSync(request.config, request.model, used)


def _first_uses(pipeline: Pipeline, schedule: Schedule, rank: int) -> list[int]:
    """Chunks in the order in which the rank first runs them; none when nothing was updated."""
    if schedule.is_forward_only:
        return []
    stages = dict.fromkeys(a.stage for a in schedule.orders[rank] if a.kind is Kind.F)
    return [pipeline.placement.chunk_of[stage] for stage in stages]


def _readers(
    pipeline: Pipeline, schedule: Schedule, iterators: list, rank: int
) -> list[Iterator | None]:
    """The chunks' data iterators, made to follow the schedule where it is out of order."""
    readers = list(iterators)
    placement, total = pipeline.placement, schedule.num_microbatches
    for chunk, stage in enumerate(placement.stages_of[rank]):
        wanted = [
            a.microbatch for a in schedule.orders[rank] if a.stage == stage and a.kind is Kind.F
        ]
        if iterators[chunk] is not None and wanted != list(range(total)):
            readers[chunk] = MicrobatchReader(
                iterators[chunk], chunk=chunk, wanted=wanted, total=total
            )
    return readers


def _tensor_shape(
    config: Any, pg_collection: Any, seq_length: int, micro_batch_size: int
) -> tuple[int, int, int]:
    length = seq_length // pg_collection.cp.size()
    if config.sequence_parallel:
        length //= pg_collection.tp.size()
    return length, micro_batch_size, config.hidden_size


def _check(pipeline: Pipeline, config: Any, chunks: list, iterators: list) -> None:
    if not len(chunks) == len(iterators) == pipeline.num_chunks:
        raise ValueError(
            f"schedule {pipeline.name!r} needs {pipeline.num_chunks} model chunks and data "
            f"iterators on every rank, got {len(chunks)} and {len(iterators)}"
        )
    if config.num_microbatches_with_partial_activation_checkpoints is not None:
        raise ValueError(
            "num_microbatches_with_partial_activation_checkpoints counts microbatches in flight of "
            f"Megatron's own schedule; it is not supported with --pipeline-schedule {pipeline.name}"
        )

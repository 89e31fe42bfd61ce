"""What surrounds the steps of one training: agreement, watchdog, communicators, checks."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from hanayo_megatron import cpu
from hanayo_megatron.errors import HanayoError, OneRankError
from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.lowering.rendezvous import Communicator
from hanayo_megatron.megatron.hooks import Hook
from hanayo_megatron.megatron.host_network import hosts_of
from hanayo_megatron.megatron.job_options import JobOptions
from hanayo_megatron.megatron.losses import Outlines, collect_on_rank
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.megatron.timelines import StepTimelines
from hanayo_megatron.runtime.agreement import agree
from hanayo_megatron.runtime.checked_transport import CheckedTransport
from hanayo_megatron.runtime.communicators import connect_group, connect_pairs
from hanayo_megatron.runtime.lifeline import Anchor
from hanayo_megatron.runtime.messenger import Messenger
from hanayo_megatron.runtime.notice_board import NoticeBoard
from hanayo_megatron.runtime.observer import Observer
from hanayo_megatron.runtime.progress import Progress
from hanayo_megatron.runtime.receive_buffers import ReceiveBuffers
from hanayo_megatron.runtime.termination import put_off_sigterm
from hanayo_megatron.runtime.transport import Transport
from hanayo_megatron.runtime.watchdog import Patience, Watchdog

_SECONDS_TO_AGREE = 120.0
"""NCCL's groups start without waiting for anybody: ranks may come here as far apart as they start
and import."""


class Job:
    """State of one rank beside the model.

    Args:
        options: what the flags ask for.
        plan: gives what all ranks must have in common; asked once the flags are final.
    """

    def __init__(
        self,
        options: JobOptions | None = None,
        plan: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self.options = options or JobOptions()
        self._plan = plan
        self.pairs: Mapping[int, dist.ProcessGroup] | None = None
        """By peer, the group that carries transfers with it; None: the pipeline's own does."""
        self.outlines = Outlines()
        on_gpu = torch.cuda.is_available() and not cpu.is_active()
        self.progress = Progress(on_gpu=on_gpu and self.options.watchdog_seconds > 0)
        self._watchdog: Watchdog | None = None
        self._timelines: StepTimelines | None = None
        if self.options.timeline is not None:
            steps = self.options.timeline_steps
            self._timelines = StepTimelines(self.options.timeline, steps, on_gpu=on_gpu)

    def agree(self) -> None:
        """Raise DisagreementError on every rank if any two ranks are to do different things."""
        if self._plan is not None and _is_real():
            agree(
                _own_store("agreement"),
                rank=dist.get_rank(),
                num_ranks=dist.get_world_size(),
                fields=self._plan(),
                patience=_SECONDS_TO_AGREE,
            )

    def watch(self) -> None:
        """Start the watchdog, if it is on; it ends with the process."""
        seconds = self.options.watchdog_seconds
        if not seconds or not _is_real():
            return
        watchdog = Watchdog(
            NoticeBoard(_own_store("watchdog")),
            Anchor(os.environ.get("MASTER_ADDR", "localhost")),
            rank=dist.get_rank(),
            num_ranks=dist.get_world_size(),
            progress=self.progress,
            patience=Patience(hang=seconds),
            holds_store=_holds_store(),
        )
        watchdog.start()
        self._watchdog = watchdog
        put_off_sigterm(watchdog.ask_to_end)
        atexit.register(watchdog.stop)
        sys.excepthook = _telling(watchdog, sys.excepthook)

    def connect(self, pipeline: Pipeline) -> None:
        """Make and warm up what NCCL needs for transfers between stages, and for the losses.

        All ranks of a pipeline take every step of this in one order. The pipeline's own group is
        connected in any case: tied weights and token counts use it, some of them between two ranks
        only, which NCCL cannot do before all ranks have connected.
        """
        group = parallel_state.get_pipeline_model_parallel_group()
        if dist.get_backend(group) != dist.Backend.NCCL:
            return
        placement = pipeline.placement
        connect_group(group)
        if self.options.communicators == "pair":
            self.pairs = connect_pairs(group, placement)
        hosts_of(group)
        collect_on_rank(
            {group.rank(): [torch.zeros(1, device=torch.cuda.current_device())]},
            sources=placement.last_ranks,
            target=placement.num_ranks - 1,
            group=group,
            outlines=self.outlines,
        )

    @property
    def communicator(self) -> Communicator:
        """Whether transfers with all peers keep one order (as gloo's may), or those with each."""
        return Communicator.GROUP if self.pairs is None else Communicator.PAIR

    def messenger(self, transport: Transport) -> Messenger:
        """Sends what stages hand on by a transport, checked in debug mode."""
        if self.options.debug:
            transport = CheckedTransport(transport, step=self.progress.steps)
        return Messenger(transport, ReceiveBuffers(torch.cuda.current_device()))

    def watching(self, step: Callable[..., list]) -> Callable[..., list]:
        """The same function; while it runs the watchdog looks for progress."""

        def watched_step(*args: Any, **kwargs: Any) -> list:
            self.progress.begin_step()
            try:
                losses = step(*args, **kwargs)
            except BaseException as error:
                self.progress.leave_step(error)
                if self._watchdog is not None and isinstance(error, OneRankError):
                    self._watchdog.fail(str(error), lost_connection=False)
                raise
            self.progress.end_step()
            return losses

        return watched_step

    @contextmanager
    def executing(
        self, lowered: LoweredSchedule, group: dist.ProcessGroup
    ) -> Iterator[list[Observer]]:
        """While a rank's action list runs; gives the observers of its executor."""
        with ExitStack() as stack:
            observers: list[Observer] = [self.progress]
            if self._timelines is not None:
                observers += stack.enter_context(self._timelines.measuring(lowered, group))
            self.progress.begin_list(len(lowered.programs[group.rank()]))
            yield observers
            self.progress.note("behind the last operation of the list")


def start_hook(pipeline: Pipeline, job: Job) -> Hook:
    """The place where all ranks are connected and no group, model or data exists yet."""

    def starting(original: Callable) -> Callable:
        def initialize_model_parallel(*args: Any, **kwargs: Any) -> None:
            job.agree()
            job.watch()
            original(*args, **kwargs)
            job.connect(pipeline)

        return initialize_model_parallel

    return Hook("megatron.core.parallel_state:initialize_model_parallel", (), starting)


def _is_real() -> bool:
    """Whether there are other processes (Megatron's fake process groups have none)."""
    return dist.is_initialized() and dist.get_backend() != "fake"


def _own_store(purpose: str) -> dist.Store:
    """A connection of its own, with its own keys: any thread may use it."""
    store = dist.distributed_c10d._get_default_store()
    return dist.PrefixStore(f"hanayo_megatron/{purpose}", store.clone())


def _holds_store() -> bool:
    """Under torchrun the agent holds the store; otherwise rank 0 does."""
    return dist.get_rank() == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _telling(watchdog: Watchdog, original: Callable) -> Callable:
    """An excepthook that lets the other ranks know before this one ends."""

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, (KeyboardInterrupt, HanayoError)):
            first_line = (str(error).splitlines() or [""])[0]
            watchdog.fail(
                f"{kind.__name__}: {first_line}", lost_connection=_is_lost_connection(error)
            )
        original(kind, error, trace)

    return excepthook


def _is_lost_connection(error: BaseException | None) -> bool:
    """Whether the error, or what brought it about, is that of a connection to another rank."""
    if error is None:
        return False
    text = str(error)
    if isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and ("gloo" in text or "NCCL" in text)
    ):
        return True
    hidden = error.__suppress_context__
    return _is_lost_connection(error.__cause__ or (None if hidden else error.__context__))

"""Measures chosen steps of a training and writes their timelines."""

from __future__ import annotations

import atexit
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from hanayo_megatron.lowering.lower import LoweredSchedule
from hanayo_megatron.megatron.host_network import hosts_of
from hanayo_megatron.runtime.clock_comparison import seconds_ahead
from hanayo_megatron.runtime.observer import Observer
from hanayo_megatron.runtime.recorder import CudaClock, HostClock, NvtxRanges, Recorder, Span
from hanayo_megatron.timeline.measured import measured_timeline, save_measured

logger = logging.getLogger(__name__)


class StepTimelines:
    """Counts training steps and measures those that were chosen.

    Every rank writes ``step<N>-rank<R>.json``, its spans in seconds. The first rank of every
    pipeline writes ``step<N>-pipeline<R>`` for all ranks of it: ``.json`` in the simulator's
    format, ``.svg`` with the planned step above the measured one, and ``.trace.json`` for
    Perfetto. R is a global rank. Times are those of the clock of the pipeline's first rank.

    Args:
        folder: made if it is missing.
        steps: counted from 1.
        on_gpu: whether times are those of the GPU.
    """

    def __init__(self, folder: Path, steps: range, *, on_gpu: bool) -> None:
        self._folder = folder
        self._steps = steps
        self._on_gpu = on_gpu
        self._step = 0
        atexit.register(self._tell_of_none)

    @contextmanager
    def measuring(
        self, lowered: LoweredSchedule, group: dist.ProcessGroup
    ) -> Iterator[list[Observer]]:
        """While a rank's action list runs; gives the observers to measure it, if any."""
        if lowered.schedule.is_forward_only:
            yield []
            return
        self._step += 1
        if self._step not in self._steps:
            yield []
            return
        hosts = hosts_of(group)
        ahead = seconds_ahead(hosts)
        dist.barrier(group=hosts)
        recorder = Recorder(CudaClock() if self._on_gpu else HostClock())
        yield [recorder, NvtxRanges()] if self._on_gpu else [recorder]
        spans = [Span(start - ahead, end - ahead, what) for start, end, what in recorder.spans()]
        self._save(lowered, spans, hosts)

    def _tell_of_none(self) -> None:
        if self._step < self._steps.start and os.environ.get("RANK", "0") == "0":
            logger.warning(
                "no step was measured: the run had %d, to be measured were %d to %d",
                *(self._step, self._steps.start, self._steps.stop - 1),
            )

    def _save(self, lowered: LoweredSchedule, spans: list[Span], hosts: dist.ProcessGroup) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        own = self._folder / f"step{self._step}-rank{dist.get_rank()}.json"
        own.write_text(json.dumps(spans), encoding="utf-8")
        is_first = hosts.rank() == 0
        gathered: list[list] | None = [[] for _ in range(hosts.size())] if is_first else None
        dist.gather_object(spans, gathered, group=hosts, group_dst=0)
        if gathered is not None:
            stem = self._folder / f"step{self._step}-pipeline{dist.get_rank()}"
            title = f"{lowered.schedule.name}, step {self._step} as measured"
            save_measured(lowered, measured_timeline(lowered, gathered, title=title), stem)
            logger.info("timeline of step %d written to %s.svg", self._step, stem)

"""Forks the ranks of one run after another from a process that has Megatron imported.

Run as `python -m megatron_runs.server`; reads one request a line from stdin (JSON, see
`Launcher.run`) and answers each with a line on stdout. Ends with its stdin.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from megatron_runs.ranks import become_rank, free_port, rank_environment, wait_for_ranks
from megatron_runs.run import output_paths

# The trainer, and what it imports on its way: else every rank of every run would.
_PRELOADED = (
    "megatron.training",
    "megatron.core.datasets.blended_megatron_dataset_builder",
    "megatron.core.datasets.gpt_dataset",
    "megatron.core.datasets.helpers",
    "megatron.core.dist_checkpointing.strategies.filesystem_async",
    "megatron.core.models.mimo.optimizer",
    "megatron.core.tokenizers.text.models.default_tokenizer",
    "torch._dynamo",
)
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until stdin ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _preload()
    for line in iter(sys.stdin.buffer.raw.readline, b""):
        exit_codes, timed_out = _serve(json.loads(line))
        print(json.dumps([exit_codes, timed_out]), file=replies, flush=True)


def _preload() -> None:
    from hanayo_megatron import cpu

    cpu.redirect()
    for module in _PRELOADED:
        importlib.import_module(module)
    if threading.active_count() != 1:
        raise RuntimeError(f"a fork would lose the threads {threading.enumerate()}")
    gc.collect()
    gc.freeze()


def _serve(request: dict[str, Any]) -> tuple[list[int], bool]:
    port = free_port()
    process_ids = {rank: _fork(rank, port, request) for rank in range(request["ranks"])}
    return wait_for_ranks(
        process_ids,
        timeout=request["timeout"],
        grace=request["grace"],
        also_stop_on=sys.stdin.fileno(),
    )


def _fork(rank: int, port: int, request: dict[str, Any]) -> int:
    """Start a rank; returns its process id, in the parent only.

    A rank leaves by SystemExit, so that Python ends as usual and with it what the rank started.
    """
    pid = os.fork()
    if pid:
        return pid
    _redirect_output(rank, Path(request["folder"]))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(rank_environment(rank, request["ranks"], port))
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if "--save" in request["arguments"]:
        _fork_the_saver()
    become_rank(request["module"], request["arguments"])
    raise SystemExit


def _fork_the_saver() -> None:
    """Megatron starts a helper process at its first save, a new Python with torch; fork it here."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    os.setpgid(0, 0)
    filesystem_async.get_write_results_queue("fork")


def _redirect_output(rank: int, folder: Path) -> None:
    for stream, path in zip((sys.stdout, sys.stderr), output_paths(folder, rank), strict=True):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, stream.fileno())
        os.close(file)


if __name__ == "__main__":
    main()

"""Runs a training on ranks that are new Python processes, as torchrun would start them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from megatron_runs.launcher import python_environment
from megatron_runs.ranks import become_rank, free_port, rank_environment, wait_for_ranks
from megatron_runs.run import Run, output_paths, read_run


def launch_fresh(
    arguments: Sequence[str],
    *,
    ranks: int,
    module: str = "hanayo_megatron.pretrain_gpt",
    environment: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    grace: float = 10.0,
) -> Run:
    """As `Launcher.run`, at the cost of importing torch and Megatron in every rank."""
    with tempfile.TemporaryDirectory(prefix="megatron_run_") as name:
        folder, port, started = Path(name), free_port(), time.monotonic()
        command = [sys.executable, "-m", "megatron_runs.fresh", module, *arguments]
        processes = []
        for rank in range(ranks):
            out, err = output_paths(folder, rank)
            with out.open("w") as stdout, err.open("w") as stderr:
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        cwd=folder,
                        env={
                            **python_environment(),
                            **rank_environment(rank, ranks, port),
                            **(environment or {}),
                        },
                        process_group=0,
                    )
                )
        exit_codes, timed_out = wait_for_ranks(
            {rank: process.pid for rank, process in enumerate(processes)},
            timeout=timeout,
            grace=grace,
        )
        for process, exit_code in zip(processes, exit_codes, strict=True):
            process.returncode = exit_code  # reaped by `wait_for_ranks`
        seconds = time.monotonic() - started
        return read_run(folder, exit_codes, seconds=seconds, timed_out=timed_out)


if __name__ == "__main__":
    become_rank(sys.argv[1], sys.argv[2:])

"""The ranks of one run: what each is told, waiting for them, ending those that do not end."""

from __future__ import annotations

import faulthandler
import os
import random
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

_STACK_SIGNAL = signal.SIGUSR1
_SECONDS_FOR_STACKS = 0.5
# Below the range that the kernel gives to outgoing connections, of which gloo makes many.
_PORTS = range(20_000, 32_000)


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun would set for a rank of a run on this machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def become_rank(module: str, arguments: Sequence[str]) -> None:
    """Run `module` in this process as `python -m module arguments` would, as a group of its own."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    faulthandler.register(_STACK_SIGNAL)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def wait_for_ranks(
    process_ids: Mapping[int, int], *, timeout: float, grace: float, also_stop_on: int | None = None
) -> tuple[list[int], bool]:
    """Wait for all ranks; kill them at the time limit, or `grace` seconds after one failed.

    Args:
        process_ids: by rank; children of this process that started with `become_rank`, so that
            those that hang write their stacks before they are killed.
        timeout: seconds.
        grace: seconds that the others have to end once a rank has failed.
        also_stop_on: a file descriptor; all ranks are killed when it becomes readable.

    Returns:
        The exit code of every rank, and whether the time limit was hit.
    """
    exit_codes: dict[int, int] = {}
    waiting = {os.pidfd_open(pid): rank for rank, pid in process_ids.items()}
    deadline, timed_out = time.monotonic() + timeout, False
    try:
        while waiting:
            watched = [*waiting, *([] if also_stop_on is None else [also_stop_on])]
            ready, _, _ = select.select(watched, [], [], max(0.0, deadline - time.monotonic()))
            if not ready or also_stop_on in ready:
                timed_out = not any(exit_codes.values())
                _kill([process_ids[rank] for rank in waiting.values()])
                ready = list(waiting)
            for pidfd in ready:
                rank = waiting.pop(pidfd)
                os.close(pidfd)
                exit_codes[rank] = _reap(process_ids[rank])
                if exit_codes[rank] != 0:
                    deadline = min(deadline, time.monotonic() + grace)
    finally:
        for pidfd in waiting:
            os.close(pidfd)
    return [exit_codes[rank] for rank in sorted(exit_codes)], timed_out


def _kill(process_ids: list[int]) -> None:
    for pid in process_ids:
        os.kill(pid, _STACK_SIGNAL)
    time.sleep(_SECONDS_FOR_STACKS)
    for pid in process_ids:
        os.killpg(pid, signal.SIGKILL)


def _reap(process_id: int) -> int:
    """The exit code of an ended rank; what it started and left running is killed."""
    os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOWAIT)
    os.killpg(process_id, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])

"""Runs trainings one after another on ranks forked from a warm process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from megatron_runs.run import Run, read_run

_TESTS = Path(__file__).parents[1]


class Launcher:
    """A process that has torch and Megatron imported (`megatron_runs.server`), and its runs.

    Forked ranks differ from fresh ones in one thing: megatron.training is imported already, on
    CPUs, before the entry module runs.
    """

    def __init__(self) -> None:
        self._server: subprocess.Popen | None = None
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the server

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server and every rank that still runs."""
        if self._server is not None:
            self._server.stdin.close()
            self._server.wait()
            self._server.stdout.close()
            self._server = None
        self._log.close()

    def run(
        self,
        arguments: Sequence[str],
        *,
        ranks: int,
        module: str = "hanayo_megatron.pretrain_gpt",
        environment: Mapping[str, str] | None = None,
        timeout: float = 120.0,
        grace: float = 10.0,
    ) -> Run:
        """Run `module` with `arguments` on `ranks` processes, each in an empty working folder.

        Args:
            environment: variables besides those that torchrun sets.
            timeout: seconds; then the ranks write their stacks to stderr and are killed.
            grace: seconds until the others are killed once one rank has failed.

        Raises:
            RuntimeError: the server ended, which no run should be able to bring about.
        """
        with tempfile.TemporaryDirectory(prefix="megatron_run_") as folder:
            request = {
                "module": module,
                "arguments": list(arguments),
                "ranks": ranks,
                "environment": dict(environment or {}),
                "timeout": timeout,
                "grace": grace,
                "folder": folder,
            }
            server = self._running_server()
            started = time.monotonic()
            server.stdin.write(json.dumps(request).encode() + b"\n")
            server.stdin.flush()
            reply = server.stdout.readline()
            if not reply:
                self._log.seek(0)
                raise RuntimeError(f"the server ended, {server.wait()}: {self._log.read()}")
            exit_codes, timed_out = json.loads(reply)
            seconds = time.monotonic() - started
            return read_run(Path(folder), exit_codes, seconds=seconds, timed_out=timed_out)

    def _running_server(self) -> subprocess.Popen:
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "megatron_runs.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=python_environment(),
            )
        return self._server


def python_environment() -> dict[str, str]:
    """This process' environment, for a Python that finds this package and the tests' own."""
    path = [str(_TESTS.parent), str(_TESTS), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }

"""Whether a process of this machine lives, also when it says nothing."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NamedTuple

_GONE = ("Z", "X")


class Process(NamedTuple):
    """A process, as others may look for it."""

    host: str
    pid: int


def this_process() -> Process:
    """Where the caller runs."""
    return Process(socket.gethostname(), os.getpid())


def is_alive(process: Process) -> bool | None:
    """None: it runs on another machine, from where nobody can tell."""
    if process.host != socket.gethostname() or not Path("/proc/self/stat").exists():
        return None
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in _GONE

"""The end of a process whose gloo threads still free tensors."""

from __future__ import annotations

import subprocess
import sys

from megatron_runs.launcher import python_environment

CODE = """
import sys, threading, time
import torch
import torch.distributed as dist

from hanayo_megatron.cpu.distributed import redirect_distributed

redirect_distributed()


class Slow(torch.Tensor):
    freed_elsewhere = False

    def __del__(self):
        if threading.current_thread() is not threading.main_thread():
            Slow.freed_elsewhere = True
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                pass


dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
while not Slow.freed_elsewhere:
    tensor = torch.zeros(4).as_subclass(Slow)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    del tensor, work
"""


def test_the_process_ends_after_the_threads_of_gloo(tmp_path):
    """Without the wait at the end, torch aborts about two times in three."""
    ended = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "store")],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr

"""Rank 1 of 2 with a watchdog, for tests: `python watched_rank.py PORT_OF_STORE`.

Takes one step; begins another, in which native code holds Python up for a minute.
"""

import ctypes
import sys
import time

import torch.distributed as dist

from hanayo_megatron.runtime.lifeline import Anchor
from hanayo_megatron.runtime.notice_board import NoticeBoard
from hanayo_megatron.runtime.patience import Patience
from hanayo_megatron.runtime.progress import Progress
from hanayo_megatron.runtime.watchdog import Watchdog

if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", int(sys.argv[1]))
    progress = Progress(on_gpu=False)
    watchdog = Watchdog(
        NoticeBoard(store),
        Anchor("127.0.0.1"),
        rank=1,
        num_ranks=2,
        progress=progress,
        patience=Patience(hang=300),
        holds_store=False,
    )
    watchdog.start()
    progress.begin_step()
    progress.end_step()
    progress.begin_step()
    time.sleep(2)
    ctypes.PyDLL(None).sleep(60)

"""One rank's watchdog looks at another process."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import torch.distributed as dist

from hanayo_megatron.runtime.lifeline import Anchor
from hanayo_megatron.runtime.notice_board import NoticeBoard
from hanayo_megatron.runtime.patience import Patience
from hanayo_megatron.runtime.progress import Progress
from hanayo_megatron.runtime.watchdog import Watchdog
from megatron_runs.launcher import python_environment

SILENCE = 2.0


def test_native_code_that_holds_python_up_is_no_death_and_a_kill_in_it_is_found(capsys):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    board = NoticeBoard(store.clone())
    left = threading.Event()
    watchdog = Watchdog(
        NoticeBoard(store.clone()),
        Anchor("127.0.0.1"),
        rank=0,
        num_ranks=2,
        progress=Progress(on_gpu=False),
        patience=Patience(hang=60, silence=SILENCE, silence_in_alarm=SILENCE),
        holds_store=False,
        leave=lambda code: left.set(),
    )
    watchdog.start()
    script = Path(__file__).with_name("watched_rank.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(store.port)], env=python_environment()
    )
    try:
        _wait_until_silent(board)
        board.sound_alarm()
        assert not left.wait(2 * SILENCE)
        process.kill()
        assert left.wait(2), "within two seconds"
    finally:
        process.kill()
        process.wait()
        watchdog.stop()
    assert "rank 1 is gone (killed, crashed, or its machine is down)" in capsys.readouterr().err


def _wait_until_silent(board):
    """Until two seconds without a notice of rank 1 in its second step."""
    deadline = time.monotonic() + 60
    before = None
    while True:
        notice = board.read(1)
        if notice is not None and notice.steps == 2 and notice == before:
            return
        before = notice
        assert time.monotonic() < deadline
        time.sleep(2)

"""SIGTERM, put off until it is known why the job ends.

Launchers send it to all ranks as soon as one has died. Its default action ends a process before
it can say anything; and a handler in Python does not run while the thread that trains waits in
native code. So the signal is passed on to a thread, by the one thing that C's handler does at once.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType


def put_off_sigterm(asked: Callable[[], None]) -> bool:
    """Have ``asked`` called, in another thread, for every SIGTERM; it must see to the end.

    Called from the main thread. Processes forked from this one end by SIGTERM as ever. Where
    another handler is in place, or is put there later, that one decides, and ``asked`` is not
    called. Returns whether it can be.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        return False
    signal.signal(signal.SIGTERM, _leave_it_to_the_thread)
    os.register_at_fork(after_in_child=_end_as_ever)
    threading.Thread(
        target=_pass_on, args=(reader, writer, asked), name="pipeline-sigterm", daemon=True
    ).start()
    return True


def _leave_it_to_the_thread(number: int, frame: FrameType | None) -> None:
    pass


def _end_as_ever() -> None:
    if signal.getsignal(signal.SIGTERM) is _leave_it_to_the_thread:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _pass_on(reader: socket.socket, writer: socket.socket, asked: Callable[[], None]) -> None:
    """The writer is kept open for the handler."""
    while numbers := reader.recv(64):
        is_ours = signal.getsignal(signal.SIGTERM) is _leave_it_to_the_thread
        if signal.SIGTERM in numbers and is_ours:
            asked()
    writer.close()

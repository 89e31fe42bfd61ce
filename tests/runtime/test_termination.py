"""SIGTERM reaches a thread, whatever the thread that works does; forked processes obey it."""

import os
import signal
import subprocess
import sys
import time

PROGRAM = """
import ctypes, os, signal, sys, time
from hanayo_megatron.runtime.termination import put_off_sigterm

def asked():
    print("asked", flush=True)
    os._exit(7)

case = sys.argv[1]
if case == "other before":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
print(put_off_sigterm(asked), flush=True)
if case == "other later":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(6))
child = 0
if case == "child":
    child = os.fork()
    if not child:
        print(os.getpid(), flush=True)
        print("ready", flush=True)
        time.sleep(60)
        os._exit(0)
else:
    print("ready", flush=True)
if case == "native":
    lock = ctypes.CDLL(None)
    lock.pause()  # returns for no handler that restarts it, as a wait for a transfer
    while True:
        lock.usleep(60_000_000)
if child:
    print(os.waitpid(child, 0)[1], flush=True)
time.sleep(60)
"""


def run(case):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, case], stdout=subprocess.PIPE, text=True
    )
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if lines[-1] == "ready":
            return process, lines
    raise AssertionError(f"ended after {lines}")


def end(process):
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=20)[0].split()
    assert time.monotonic() - started < 5
    return process.returncode, rest


def test_a_thread_is_asked_also_while_native_code_waits():
    process, lines = run("native")
    assert lines == ["True", "ready"]
    assert end(process) == (7, ["asked"])


def test_another_handler_decides():
    process, lines = run("other before")
    assert lines == ["False", "ready"]
    assert end(process) == (5, [])
    process, lines = run("other later")
    assert lines == ["True", "ready"]
    assert end(process) == (6, [])


def test_a_forked_process_ends_as_ever():
    process, lines = run("child")
    os.kill(int(lines[1]), signal.SIGTERM)
    assert process.stdout.readline().strip() == str(int(signal.SIGTERM)), "not killed by the signal"
    assert end(process) == (7, ["asked"])

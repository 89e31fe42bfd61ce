"""A process is found to live, or not, whether or not it has been waited for."""

import subprocess
import sys

from hanayo_megatron.runtime.process_life import Process, is_alive, this_process


def test_this_process_lives_and_one_elsewhere_is_not_known_of():
    here = this_process()
    assert is_alive(here) is True
    assert is_alive(Process("another-machine.invalid", here.pid)) is None


def test_a_killed_process_does_not_live_even_before_its_parent_has_waited_for_it():
    child = subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        child.stdout.readline()
        there = this_process()._replace(pid=child.pid)
        assert is_alive(there) is True
        child.kill()
        child.stdout.read()  # ends when the process has
        while is_alive(there):
            pass
        assert child.returncode is None
    assert is_alive(there) is False

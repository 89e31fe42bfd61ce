"""A process is found to live, or not, by a connection to it."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from hanayo_megatron.runtime import lifeline as module
from hanayo_megatron.runtime.lifeline import Address, Anchor, Lifeline
from megatron_runs.launcher import python_environment


@contextmanager
def anchored_process(how):
    """The process, and a lifeline to it."""
    script = Path(__file__).with_name("anchored_process.py")
    process = subprocess.Popen(
        [sys.executable, str(script), how], env=python_environment(), stdout=subprocess.PIPE
    )
    port, child = map(int, process.stdout.readline().split())
    line = Lifeline(Address("127.0.0.1", port))
    try:
        yield process, line
        if child:
            assert Path(f"/proc/{child}").exists(), "the child outlives its parent"
    finally:
        line.close()
        if child:
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.stdout.close()
        process.wait()


def seconds_until_cut(line):
    started = time.monotonic()
    while line.holds():
        assert time.monotonic() - started < 10
        time.sleep(0.02)
    assert line.holds() is False
    return time.monotonic() - started


@pytest.mark.parametrize("how", ["idle", "hold", "child"])
def test_a_process_lives_until_it_is_killed(how):
    with anchored_process(how) as (process, line):
        time.sleep(0.5)
        assert line.holds() is True
        process.kill()
        assert seconds_until_cut(line) < 1


def test_nobody_needs_to_take_notice_of_a_lifeline():
    anchor = Anchor("localhost")
    lines = [Lifeline(anchor.address) for _ in range(20)]
    assert all(line.holds() for line in lines)
    anchor.close()
    assert [line.holds() for line in lines] == [False] * 20


def test_strangers_do_no_harm():
    anchor = Anchor("localhost")
    first = Lifeline(anchor.address)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", anchor.address.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
    then = Lifeline(anchor.address)
    assert first.holds()
    assert then.holds()
    anchor.close()
    assert then.holds() is False


def test_a_connection_that_the_network_lost_is_made_anew():
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Lifeline(Address(*server.getsockname()))
        server.accept()[0].close()
        assert line.holds() is True
        server.accept()[0].close()
    assert line.holds() is False


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "10.1.2.3"])
def test_on_its_own_machine_who_refuses_a_connection_is_gone(monkeypatch, host):
    anchor = Anchor("localhost")
    anchor.close()
    if host == "10.1.2.3":
        monkeypatch.setattr(module.socket, "create_connection", refuse)
        monkeypatch.setattr(module, "_local_address", lambda host: "10.1.2.3")
    line = Lifeline(anchor.address._replace(host=host))
    assert line.obstacle is None
    assert line.holds() is False


def test_who_refuses_a_connection_elsewhere_is_not_judged(monkeypatch):
    """It may be a firewall that refuses."""
    monkeypatch.setattr(module.socket, "create_connection", refuse)
    monkeypatch.setattr(module, "_local_address", lambda host: "10.1.2.4")
    line = Lifeline(Address("10.1.2.3", 1))
    assert line.holds() is None
    assert isinstance(line.obstacle, ConnectionRefusedError)


def test_who_cannot_be_reached_is_not_judged():
    line = Lifeline(Address("255.255.255.255", 1))
    assert line.holds() is None
    assert isinstance(line.obstacle, OSError)


def refuse(*args, **kwargs):
    raise ConnectionRefusedError


def test_a_port_joined_to_itself_is_nobody(monkeypatch):
    """As the kernel does, now and then, with a free port out of the range of outgoing ones."""
    joined = socket.socket()
    joined.bind(("127.0.0.1", 0))
    joined.connect(joined.getsockname())
    monkeypatch.setattr(module.socket, "create_connection", lambda *args, **kwargs: joined)
    line = Lifeline(Address("127.0.0.1", 1))
    assert line.holds() is False


@pytest.mark.parametrize(
    ("local", "name"),
    [("10.1.2.3", "10.1.2.3"), ("127.0.1.1", "node-0"), ("::1", "node-0"), ("fd00::7", "fd00::7")],
)
def test_other_machines_get_an_address_that_they_can_reach(monkeypatch, local, name):
    """The meeting point's own machine may know itself by a loopback address only."""
    monkeypatch.setattr(module, "_local_address", lambda host: local)
    anchor = Anchor("node-0")
    anchor.close()
    assert anchor.address.host == name


def test_the_local_address_towards_a_host():
    assert module._local_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(socket.gaierror):
        module._local_address("no-such-host.invalid")


def test_a_machine_that_is_down_is_found_by_keepalive():
    anchor = Anchor("localhost")
    line = Lifeline(anchor.address)
    option = line._connection.getsockopt
    idle, interval, count = (
        option(socket.IPPROTO_TCP, name)
        for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle + interval * count <= 15
    assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 15_000
    line.close()
    anchor.close()

"""Tells whether another process lives, on whichever machine it runs and whatever it does.

A process has an anchor, a port that it listens to; another one holds a connection to it, its
lifeline, on which nothing is ever said. Kernels make the connection and keep it up, so that native
code that holds Python up does not matter. They also close it when the process ends, in whatever
way; where the whole machine is down, keepalive finds out.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import NamedTuple

_SECONDS_TO_CONNECT = 3.0
_KEEPALIVE_IDLE, _KEEPALIVE_INTERVAL, _KEEPALIVE_COUNT = 2, 2, 5
_MILLISECONDS_UNANSWERED = 12_000
_BACKLOG = 4096
_DISCARD_PORT = 9


class Address(NamedTuple):
    """Of an anchor, as other machines know it."""

    host: str
    port: int


class Anchor:
    """What others hold on to for as long as this process lives.

    Connections stay in the queue of the listening socket, where no thread of this process has to
    take notice of them; a stray one lies there just the same. The socket stays this process's own:
    processes forked from it close theirs, or they would keep the connections up after its death.

    Args:
        meeting_point: a host that all processes reach by this name, that of their store.
    """

    def __init__(self, meeting_point: str) -> None:
        both = socket.has_dualstack_ipv6()
        self._socket = socket.create_server(
            ("", 0),
            family=socket.AF_INET6 if both else socket.AF_INET,
            dualstack_ipv6=both,
            backlog=_BACKLOG,
        )
        os.register_at_fork(after_in_child=self._socket.close)
        self.address = Address(_host_for_others(meeting_point), self._socket.getsockname()[1])

    def close(self) -> None:
        """To those who hold on, this process is gone from now on."""
        self._socket.close()


class Lifeline:
    """A connection to another process's anchor.

    Args:
        address: of the anchor. It may take a few seconds to find that it cannot be reached.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: socket.socket | None = None
        self._is_gone = False
        self.obstacle: OSError | None = None
        """Why no connection could be made, so that nothing can be told."""
        try:
            self._connection = _connect(address)
        except OSError as error:
            # A refusal may be a firewall's, but not within one machine.
            self._is_gone = isinstance(error, ConnectionRefusedError) and _is_here(address.host)
            self.obstacle = None if self._is_gone else error

    def holds(self) -> bool | None:
        """Whether the other process lives; None: there was no connection to tell by."""
        if self._is_gone:
            return False
        if self._connection is None:
            return None
        if not _is_cut(self._connection):
            return True
        self._connection.close()
        try:  # the network may have lost the connection, and not the process
            self._connection = _connect(self._address)
        except OSError:
            self._is_gone = True
        return not self._is_gone

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _host_for_others(meeting_point: str) -> str:
    """This machine's name for the others.

    The address that this machine uses towards the meeting point is one that the others can reach;
    the machine's own name may stand for 127.0.1.1. At the meeting point itself that address may be
    a loopback one, and there its name is known to all.
    """
    try:
        local = _local_address(meeting_point)
    except OSError:
        return socket.gethostname()
    return meeting_point if ipaddress.ip_address(local).is_loopback else local


def _is_here(host: str) -> bool:
    """Whether a host that was just found by its name is this machine."""
    local = _local_address(host)
    return local == host or ipaddress.ip_address(local).is_loopback


def _local_address(host: str) -> str:
    """What this machine would send to a host from. Nothing is sent. Raises OSError."""
    obstacle = OSError(f"no address of {host}")
    found = socket.getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM)
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)
            except OSError as error:
                obstacle = error
                continue
            return probe.getsockname()[0]
    raise obstacle


def _connect(address: Address) -> socket.socket:
    connection = socket.create_connection(address, timeout=_SECONDS_TO_CONNECT)
    if connection.getsockname() == connection.getpeername():
        # The kernel chose, for this end, the very port that nobody listens to.
        connection.close()
        raise ConnectionRefusedError(f"nobody listens at {address.host}:{address.port}")
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE),
        (socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL),
        (socket.TCP_KEEPCNT, _KEEPALIVE_COUNT),
        (socket.TCP_USER_TIMEOUT, _MILLISECONDS_UNANSWERED),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection


def _is_cut(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True

"""Socket options, and closing of sockets in forked children."""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

# A host that lost its power says nothing. The kernel asks after this many seconds of silence, and
# gives up when neither data nor questions were answered for a minute.
_IDLE, _BETWEEN, _UNANSWERED = 20, 5, 60
# Bytes that a Unix socket takes before the reader runs: a third less time for 13 MB than with the
# usual 200 KiB. TCP finds its own measure.
_IN_FLIGHT = 1 << 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1  # seconds between two tries

_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def own(sock: socket.socket) -> socket.socket:
    """Close a socket in forked children, as `exec` does in started ones.

    Otherwise a child, such as a data loader, keeps the connection open, and the other side does not
    notice when this process dies.
    """
    _ours.add(sock)
    return sock


def _close_in_child() -> None:
    for sock in list(_ours):
        with suppress(OSError):  # closed before
            os.close(sock.detach())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def tune(sock: socket.socket) -> socket.socket:
    """Over TCP, send at once, and notice a host that is gone; over Unix, hold more at a time."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _IN_FLIGHT)
        return sock
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE),
        ("TCP_KEEPINTVL", _BETWEEN),
        ("TCP_KEEPCNT", (_UNANSWERED - _IDLE) // _BETWEEN),
        ("TCP_USER_TIMEOUT", _UNANSWERED * 1000),
    ):
        option = getattr(socket, name, None)  # not every system has all
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return sock


@contextmanager
def kept(sock: socket.socket) -> Generator[socket.socket]:
    """A socket that is closed if the block raises."""
    try:
        yield sock
    except BaseException:
        sock.close()
        raise


def connected(host: str, port: int, seconds: float) -> socket.socket:
    with kept(own(socket.create_connection((host, port), seconds))) as sock:
        # On this machine, TCP may choose the port itself as its source, and connect to itself.
        if sock.getsockname() == sock.getpeername():
            raise ConnectionRefusedError("nobody listens there")
        return tune(sock)


def tries(seconds: float) -> Iterator[float]:
    """Yield the seconds left for a try: at least once, then with growing pauses, until none are."""
    began, waited = time.monotonic(), 0.0
    while True:
        yield max(seconds - waited, _FIRST_PAUSE)
        if waited >= seconds:
            return
        time.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE + waited / 10))
        waited = time.monotonic() - began


def hang_up(sock: socket.socket) -> None:
    """End the connection, which wakes the threads that wait for it. The socket is not closed yet.

    Closing it under a thread that reads would free its number for another file, which the thread
    would then read.
    """
    with suppress(OSError):  # the other end was faster
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # of TLS, the connection underneath

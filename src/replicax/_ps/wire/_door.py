"""Where connections come in: a TCP socket, a Unix socket, and the thread that waits at both."""

from __future__ import annotations

import logging
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import final

from replicax._ps.wire._address import host_id, of_tcp, of_unix
from replicax._ps.wire._sockets import own

_log = logging.getLogger("replicax")
_QUEUE = 1024
_LONGEST_PATH = 100  # bytes; the address of a Unix socket has room for little more
_ABANDONED = 60.0  # seconds that a folder is old before it is looked at whether anybody listens
_PAUSE = 0.1  # seconds, when the system has no file left for a connection


@final
class Door:
    """Listens, and hands over every connection; who is there, it does not ask.

    Args:
        enter: Called with each connection, in the door's thread.
    """

    def __init__(self, enter: Callable[[socket.socket], None]) -> None:
        self._enter = enter
        self._sockets: list[socket.socket] = []
        self._folder: str | None = None
        self._bell: socket.socket | None = None  # a byte for it ends the thread
        self._thread: threading.Thread | None = None

    def open(self, host: str, port: int, *, unix: bool) -> tuple[str, ...]:
        """Begin to listen. Returns the addresses."""
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, place = found[0]
        tcp = own(socket.create_server(place, family=family, backlog=_QUEUE))
        self._sockets.append(tcp)
        addresses = [of_tcp(tcp, host)]
        if unix:
            with suppress(OSError):  # no such folder, or not allowed: TCP will do
                addresses.insert(0, of_unix(self._open_unix()))
        self._bell, heard = (own(end) for end in socket.socketpair())
        self._thread = threading.Thread(
            target=self._wait, args=(heard,), name="replicax-door", daemon=True
        )
        self._thread.start()
        return tuple(addresses)

    def close(self) -> None:
        """Let nobody in any more, and remove the Unix socket."""
        if self._bell and self._thread:
            self._bell.close()
            if self._thread is not threading.current_thread():
                self._thread.join()
        for sock in self._sockets:
            sock.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _open_unix(self) -> str:
        """Listen in a folder that only this user may enter."""
        for parent in (tempfile.gettempdir(), "/tmp"):  # the first may have too long a name
            self._folder = tempfile.mkdtemp(prefix=_prefix(), dir=parent)
            path = str(Path(self._folder, "socket"))
            if len(path.encode()) <= _LONGEST_PATH:
                break
            Path(self._folder).rmdir()
        _remove_abandoned(Path(path).parents[1])
        sock = own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self._sockets.append(sock)
        sock.bind(path)
        sock.listen(_QUEUE)
        return path

    def _wait(self, heard: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, heard:
            for sock in (*self._sockets, heard):
                sock.setblocking(False)
                selector.register(sock, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is heard:
                        return
                    assert isinstance(key.fileobj, socket.socket)
                    self._accept(key.fileobj)

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # gone again
        except OSError as error:
            _log.warning("A connection could not be accepted: %s", error)
            time.sleep(_PAUSE)
            return
        self._enter(own(sock))


def _prefix() -> str:
    # With the host: its processes only can tell whether anybody listens, and several hosts may have
    # one file system.
    return f"replicax-{host_id()[:8]}-"


def _remove_abandoned(parent: Path) -> None:
    """Remove sockets of processes that were killed, else there is one more with each."""
    for folder in parent.glob(f"{_prefix()}*"):
        path = folder / "socket"
        with suppress(OSError):  # that of another user, or removed by another process
            if time.time() - folder.stat().st_mtime > _ABANDONED and not _is_alive(path):
                path.unlink()
                folder.rmdir()


def _is_alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)  # if its queue is full, that is a sign of life
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True
    return True

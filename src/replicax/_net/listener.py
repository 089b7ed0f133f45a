"""A listener on TCP and Unix sockets, which authenticates connections.

A connection is a stranger until its handshake is done. The number of strangers and their time are
limited; a new stranger replaces the oldest. A Unix socket lies in a folder that only its user may
enter: nobody else can listen there, or change messages, so messages go without seals.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import socket
import ssl
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

from replicax._net.address import host_id, listen_at
from replicax._net.handshake import PATIENCE, Caller, Stranger, examine, printable, wait_until
from replicax._net.sockets import hang_up, own, tune

if TYPE_CHECKING:
    from replicax._net.handshake import Session
    from replicax._net.secret import Secret


_QUEUE = 1024
_LONGEST_PATH = 100  # bytes; the address of a Unix socket holds little more
_ABANDONED = 60.0  # seconds after which a folder without a listener is removed


@final
class UnixSocket:
    """A listening Unix socket in a folder of its own; OSError if there is no place for it."""

    def __init__(self) -> None:
        for parent in (tempfile.gettempdir(), "/tmp"):  # the first may have too long a path
            self._folder = tempfile.mkdtemp(prefix=_prefix(), dir=parent)
            self.path = str(Path(self._folder, "socket"))
            if len(self.path.encode()) <= _LONGEST_PATH:
                break
            Path(self._folder).rmdir()
        _remove_abandoned(Path(self.path).parents[1])
        self.sock = own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self.sock.bind(self.path)
        self.sock.listen(_QUEUE)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def require_own(path: str) -> None:
    """Check that only this user can have made a socket and listen there; else PermissionError."""
    state = os.lstat(Path(path).parent)
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
        raise PermissionError("a socket in a folder that others may enter")


def _prefix() -> str:
    # With the host's id: only its processes can tell whether anybody listens, and several hosts
    # may share one file system.
    return f"replicax-{host_id()[:8]}-"


def _remove_abandoned(parent: Path) -> None:
    """Remove sockets of killed processes, which would otherwise pile up."""
    for folder in parent.glob(f"{_prefix()}*"):
        path = folder / "socket"
        with suppress(OSError):  # of another user, or removed by another process
            require_own(str(path))  # it may be a link that somebody else has made
            if time.time() - folder.stat().st_mtime > _ABANDONED and not _is_alive(path):
                path.unlink()
                folder.rmdir()


def _is_alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)  # a full queue is a sign of life
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True
    return True


_log = logging.getLogger("replicax")
STRANGERS = 64
_PAUSE = 0.1  # seconds, when the system has no file or thread left for a connection
_BETWEEN_WARNINGS = 60.0  # seconds in which it is logged once
_MOST_PEERS = 1024  # of which a refusal is remembered
# Errors of a connection that broke, or that this end has closed.
_GONE = (OSError, EOFError)


class Accepted(NamedTuple):
    """An authenticated connection to a process of the cluster."""

    sock: socket.socket  # closed by the listener
    session: Session
    caller: Caller  # the process at the other end


@final
class Listener:
    """Accepts connections from processes that prove to belong to the cluster.

    Without a `secret`, every process is accepted. Callers must have meant the `place` of this
    process. `admit` is called with each caller; it returns JSON for the caller, or raises `Denied`.
    Then `serve` is called with the connection, in a thread of its own. A handshake may take
    `patience` seconds, and `strangers` may be in theirs at the same time.
    """

    def __init__(
        self,
        secret: Secret | None,
        place: str,
        serve: Callable[[Accepted], None],
        *,
        admit: Callable[[Caller], dict[str, Any]] = lambda caller: {},
        tls: ssl.SSLContext | None = None,
        patience: float = PATIENCE,
        strangers: int = STRANGERS,
    ) -> None:
        self._secret, self._place, self._tls = secret, place, tls
        self._serve, self._admit = serve, admit
        self._patience, self._most_strangers = patience, strangers
        self._listening: list[socket.socket] = []
        self._bell: socket.socket | None = None  # a byte for it ends the thread that accepts
        self._accepting: threading.Thread | None = None
        self._lock = threading.Lock()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._strangers: dict[threading.Thread, None] = {}  # the oldest first
        self._refused: set[str] = set()
        self._warned = -_BETWEEN_WARNINGS
        self._closed = False

    def listen(self, host: str, port: int) -> socket.socket:
        """Take a TCP port of an interface: 0 for any, an empty text for all interfaces."""
        return self.listen_on(listen_at(host, port, _QUEUE))

    def listen_on(self, sock: socket.socket) -> socket.socket:
        """Listen on a socket, which `shut` closes."""
        self._listening.append(own(sock))
        return sock

    def open(self) -> None:
        self._bell, heard = (own(end) for end in socket.socketpair())
        self._accepting = threading.Thread(
            target=self._wait, args=(heard,), name="replicax-listener", daemon=True
        )
        self._accepting.start()

    def shut(self) -> None:
        """Stop accepting connections; present ones stay open."""
        if self._bell and self._accepting:
            self._bell.close()
            if self._accepting is not threading.current_thread():
                self._accepting.join()
        for sock in self._listening:
            sock.close()

    def close(self, seconds: float = 0.0) -> None:
        """End all connections, and wait up to `seconds` for the threads that serve them."""
        with self._lock:
            self._closed = True
            threads = list(self._connections)
            for sock in self._connections.values():
                hang_up(sock)
        self.shut()
        deadline = time.monotonic() + seconds
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _wait(self, heard: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, heard:
            for sock in (*self._listening, heard):
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
            self._pause(error)
            return
        self._enter(own(sock))

    def _enter(self, sock: socket.socket) -> None:
        with self._lock:
            if self._closed:
                sock.close()
                return
            if len(self._strangers) >= self._most_strangers:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                hang_up(self._connections[oldest])  # its thread does the rest
            thread = threading.Thread(
                target=self._have, args=(sock,), name="replicax-session", daemon=True
            )
            self._connections[thread] = sock
            self._strangers[thread] = None
            try:
                thread.start()
                return
            except RuntimeError as error:  # the system has no thread left
                del self._connections[thread], self._strangers[thread]
                reason = error
        sock.close()
        self._pause(reason)

    def _pause(self, error: Exception) -> None:
        """Wait until there may be a file or a thread again."""
        now = time.monotonic()
        if now - self._warned >= _BETWEEN_WARNINGS:
            self._warned = now
            _log.warning("A connection could not be accepted: %s", error)
        time.sleep(_PAUSE)

    def _have(self, sock: socket.socket) -> None:
        """Handle one connection, from its handshake to its end."""
        caller = Caller("", {}, "this host", is_local=sock.family == socket.AF_UNIX)
        try:
            if not caller.is_local:
                caller.peer = str(sock.getpeername()[0])
            connection = self._meet(sock, caller)
            with self._lock:
                self._strangers.pop(threading.current_thread(), None)
            self._serve(connection)
        except Stranger as error:
            self.refuse(caller.peer, str(error))
        except _GONE:
            pass  # it has left, or this end was closed
        finally:
            with self._lock:
                self._strangers.pop(threading.current_thread(), None)
                self._connections.pop(threading.current_thread()).close()

    def _meet(self, sock: socket.socket, caller: Caller) -> Accepted:
        """Do the handshake, within `patience` seconds."""
        deadline = time.monotonic() + self._patience
        try:
            wait_until(tune(sock), deadline)
            if self._tls and not caller.is_local:
                sock = self._encrypted(sock, self._tls)
            session = examine(
                sock,
                self._secret,
                caller,
                place=self._place,
                admit=self._admit,
                deadline=deadline,
            )
        except TimeoutError:
            raise Stranger(f"it did not say who it is within {self._patience:g} s") from None
        except ssl.SSLError as error:
            raise Stranger(f"it does not use TLS as this side does ({error})") from None
        sock.settimeout(None)
        return Accepted(sock, session, caller)

    def _encrypted(self, sock: socket.socket, tls: ssl.SSLContext) -> socket.socket:
        encrypted = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._connections[threading.current_thread()] = own(encrypted)  # it has replaced `sock`
            if self._closed:  # meanwhile, and `sock` was hung up on for nothing
                raise EOFError
        encrypted.do_handshake()
        return encrypted

    def refuse(self, peer: str, reason: str) -> None:
        """Log why a connection was refused, once for each peer, to keep the log short."""
        with self._lock:
            if peer in self._refused or len(self._refused) >= _MOST_PEERS:
                return
            self._refused.add(peer)
        _log.warning(
            "Hung up on a connection from %s: %s. Only processes of this cluster may connect, with "
            "its secret. Nothing was done for it; more from there is not logged.",
            peer,
            printable(reason).rstrip("."),
        )

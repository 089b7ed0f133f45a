"""The end of connections that answers: lets in who knows the secret, and hands over requests."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

from replicax._ps.wire._channel import BROKEN, Channel, Prepared
from replicax._ps.wire._door import Door
from replicax._ps.wire._frames import FAILURE, HELLO, LARGEST, REPLY, REQUEST, Garbled, Message
from replicax._ps.wire._handshake import PATIENCE, Stranger, check_secret, examine, wait_until
from replicax._ps.wire._shared import can_share
from replicax._ps.wire._sockets import hang_up, own, tune

if TYPE_CHECKING:
    from replicax._ps.wire._frames import Buffer

_log = logging.getLogger("replicax")
_STRANGERS = 64  # connections at a time of which it is not known yet who they are; others wait
_ENDING = 5.0  # seconds that handlers get to come back when the listener closes
_LONGEST_TEXT = 1 << 16  # characters of an error's message
_MOST_PEERS = 1024  # of which a refusal is remembered


@final
class Session:
    """One connection, as the handler sees it.

    Args:
        hello: What the other side said of itself.
        peer: Where it comes from.
    """

    def __init__(self, hello: dict[str, Any], peer: str) -> None:
        self.hello = hello
        self.peer = peer
        self.state: dict[str, Any] = {}  # the handler's own


@final
class Listener:
    """Answers requests: each connection has a thread, in which the handler is called.

    Args:
        secret: What both sides know.
        handle: Called with the session and a request; gives the head and the buffers of the
            answer. What it raises becomes a `RemoteError` of `Link.call`.
        host: The interface to listen on; "0.0.0.0" or "::" for all.
        port: The TCP port; 0 lets the system choose.
        tls: How TCP is encrypted. Unix sockets are not: they do not leave the host.
        unix: Whether there is a Unix socket, too: faster, for processes of the same host.
        shared: Whether large buffers then go through shared memory: faster still.
        largest: The most bytes that the buffers of one message may have.
        patience: Seconds that a connection has to say who it is.
    """

    def __init__(
        self,
        secret: bytes,
        handle: Callable[[Session, Message], tuple[dict[str, Any], Sequence[Buffer]]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        unix: bool = True,
        shared: bool = True,
        largest: int = LARGEST,
        patience: float = PATIENCE,
    ) -> None:
        check_secret(secret)
        self._secret = secret
        self._handle = handle
        self._place = (host, port)
        self._tls = tls
        self._unix = unix and hasattr(socket, "AF_UNIX")
        self._shared = shared and can_share()
        self._largest = largest
        self._patience = patience
        self._door = Door(self._enter)
        self._lock = threading.Lock()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        self._refused: set[str] = set()
        self._closed = False

    def start(self) -> tuple[str, ...]:
        """Listen. Returns the addresses for `Link.connect`."""
        host, port = self._place
        return self._door.open(host, port, unix=self._unix)

    def close(self) -> None:
        """End all connections and threads. A handler that does not come back is left behind."""
        with self._lock:
            self._closed = True
            threads = list(self._connections)
            for sock in self._connections.values():
                hang_up(sock)
        self._door.close()
        deadline = time.monotonic() + _ENDING
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _enter(self, sock: socket.socket) -> None:
        self._strangers.acquire()
        with self._lock:
            if not self._closed:
                thread = threading.Thread(
                    target=self._serve, args=(sock,), name="replicax-session", daemon=True
                )
                self._connections[thread] = sock
                thread.start()
                return
        self._strangers.release()
        sock.close()

    def _serve(self, sock: socket.socket) -> None:
        """Have one connection, from its first byte to its last."""
        peer = "this host"
        try:
            try:
                if sock.family != socket.AF_UNIX:
                    peer = str(sock.getpeername()[0])
                channel, session = self._admit(sock, peer)
            finally:
                self._strangers.release()
            while True:
                channel.send(self._answer(channel, session))
        except (Stranger, Garbled) as error:
            self._refuse(peer, str(error))
        except BROKEN:
            pass  # it has left, or this end was closed
        finally:
            with self._lock:
                self._connections.pop(threading.current_thread()).close()

    def _admit(self, sock: socket.socket, peer: str) -> tuple[Channel, Session]:
        """Find out who it is, in time."""
        deadline = time.monotonic() + self._patience
        shared = self._shared and sock.family == socket.AF_UNIX
        try:
            wait_until(tune(sock), deadline)
            if self._tls and sock.family != socket.AF_UNIX:
                sock = self._encrypted(sock, self._tls)
            examine(sock, self._secret, shared, deadline)
            wait_until(sock, deadline)
            channel = Channel(sock, self._largest, shared=shared)
            kind, hello = channel.receive()
        except TimeoutError:
            raise Stranger(f"it did not say who it is within {self._patience:g} s") from None
        except ssl.SSLError as error:
            raise Stranger(f"it does not use TLS as this side does ({error})") from None
        if kind != HELLO:
            raise Garbled("it asked before it said who it is")
        sock.settimeout(None)
        return channel, Session(hello.head, peer)

    def _encrypted(self, sock: socket.socket, tls: ssl.SSLContext) -> socket.socket:
        encrypted = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._connections[threading.current_thread()] = own(encrypted)  # it has replaced `sock`
            if self._closed:  # meanwhile, and `sock` was hung up on for nothing
                raise EOFError
        encrypted.do_handshake()
        return encrypted

    def _answer(self, channel: Channel, session: Session) -> Prepared:
        kind, message = channel.receive()
        if kind != REQUEST:
            raise Garbled("it sent what is no request")
        try:
            head, buffers = self._handle(session, message)
            del message  # so that its memory, if it is shared, can be given back with the answer
            return channel.prepare(REPLY, "", head, buffers)
        except Exception as error:
            text = str(error)[:_LONGEST_TEXT]
            return channel.prepare(FAILURE, "", {"kind": type(error).__name__, "text": text}, ())

    def _refuse(self, peer: str, reason: str) -> None:
        """Say it once for each peer: who tries a thousand times does not fill the log."""
        with self._lock:
            if peer in self._refused or len(self._refused) >= _MOST_PEERS:
                return
            self._refused.add(peer)
        _log.warning(
            "Hung up on a connection from %s: %s. Only processes of this cluster may connect, with "
            "its secret. Nothing was done for it; more from there is not logged.",
            peer,
            reason,
        )

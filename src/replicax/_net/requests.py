"""Requests: `RequestClient` asks, `RequestServer` answers whoever knows the secret."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import ClusterError
from replicax._net.address import Address, at_place, of_tcp, of_unix, reachable
from replicax._net.connection import BROKEN, Connection, reason_of
from replicax._net.frames import FAILURE, LARGEST, REPLY, REQUEST, Encoded, Garbled, Message
from replicax._net.handshake import (
    PATIENCE,
    Caller,
    Forged,
    Refused,
    check_secret,
    introduce,
    wait_until,
)
from replicax._net.listener import Accepted, Listener, UnixSocket, require_own
from replicax._net.secret import Secret
from replicax._net.shared_memory import can_share
from replicax._net.sockets import connected, kept, own, tune

if TYPE_CHECKING:
    import ssl

    from replicax._net.frames import Buffer


class RemoteError(ClusterError, RuntimeError):
    """Raised by `RequestClient.call` if the other side's handler raised. The connection goes on.

    `kind` is the name of the exception's class, such as `KeyError`.
    """

    def __init__(self, kind: str, text: str, op: str = "", peer: str = "") -> None:
        super().__init__(kind, text, op, peer)  # so that it can be pickled
        self.kind = kind
        self.text = text
        self.op = op
        self.peer = peer

    def __str__(self) -> str:
        return (
            f"{self.peer or 'The other side'} failed in {self.op!r} with {self.kind}: {self.text}"
        )


class UnknownOperation(ClusterError):
    """Raised on a member that is asked for what it does not do; the connection goes on."""


def answering(state: Any, op: str) -> Callable[..., Any]:
    """The method of a member's state that answers the operation `op`: `op_op`."""
    found = getattr(state, f"op_{op}", None)
    if found is None:
        raise UnknownOperation(
            f"A {type(state).__name__} has no operation {op!r}. Let all machines have the same "
            "version of Replicax. See docs/clusters.md."
        )
    return found


class ConnectionLost(ClusterError, ConnectionError):
    """Raised when the other side cannot be reached, or the connection broke or was closed."""


@final
class RequestClient:
    """A connection to a `RequestServer`: `call` asks and waits for the answer. Made by `connect`.

    Any thread may call; one request is under way at a time, and other threads wait.
    """

    def __init__(self, connection: Connection, address: str) -> None:
        self.address = address
        self._connection = connection
        self._busy = threading.Lock()
        self._closed = False

    @classmethod
    def connect(
        cls,
        addresses: Sequence[str],
        secret: bytes,
        *,
        hello: dict[str, Any] | None = None,
        place: str = "",
        timeout: float = 10.0,
        tls: ssl.SSLContext | None = None,
        largest: int = LARGEST,
    ) -> RequestClient:
        """Connect to a server by the fastest of its addresses that works.

        `hello` is JSON that introduces this process; `place` is its own place in the cluster. An
        address has `timeout` seconds; the buffers of one message have at most `largest` bytes.
        """
        check_secret(secret)
        failures: dict[str, Exception] = {}
        for address in reachable(addresses):
            try:
                deadline = time.monotonic() + timeout
                connection = _open(address, secret, place, hello or {}, deadline, tls, largest)
                return cls(connection, address.text)
            except Refused:
                raise
            except BROKEN as error:
                failures[address.text] = error
        tried = "; ".join(f"{reason_of(error)} at {text}" for text, error in failures.items())
        raise ConnectionLost(
            f"Cannot connect: {tried}. Check that the other process runs, that no firewall is "
            "between, and that both sides use TLS, or neither."
        )

    def call(
        self,
        op: str,
        head: dict[str, Any] | None = None,
        buffers: Sequence[Buffer] = (),
        *,
        timeout: float | None = None,
    ) -> Message:
        """Send a request and wait for the answer, up to `timeout` seconds.

        Buffers are C-contiguous. They are sent from where they are in memory, and must not change
        meanwhile. `RemoteError` if the handler raised; the connection goes on. `ConnectionLost` if
        it broke, was closed, or gave no answer in time.
        """
        with self._busy, self._limited(timeout):
            self._send(op, head, buffers)
            return self._receive(op)

    def begin(
        self, op: str, head: dict[str, Any] | None = None, buffers: Sequence[Buffer] = ()
    ) -> Callable[..., Message]:
        """Send a request without waiting, so that several listeners can work at the same time.

        The arguments and the errors are those of `call`. The returned function waits for the
        answer, up to `timeout` seconds. It must be called, once; nobody else can ask before.
        """
        self._busy.acquire()
        try:
            self._send(op, head, buffers)
        except BaseException:
            self._busy.release()
            raise

        def end(timeout: float | None = None) -> Message:
            try:
                with self._limited(timeout):
                    return self._receive(op)
            finally:
                self._busy.release()

        return end

    def is_answered(self) -> bool:
        """Whether `begin`'s answer has begun to come, or the connection has ended."""
        return self._closed or self._connection.has_bytes()

    def close(self) -> None:
        """End the connection, from any thread; a waiting call raises `ConnectionLost`."""
        self._closed = True
        self._connection.hang_up()
        # A waiting thread is woken and leaves at once, unless it is this thread in a signal
        # handler.
        if self._busy.acquire(timeout=1.0):
            self._connection.close()
            self._busy.release()

    @contextmanager
    def _limited(self, timeout: float | None) -> Generator[None]:
        if timeout is None:
            yield
            return
        self._connection.limit(time.monotonic() + timeout)
        try:
            yield
        finally:
            if not self._closed:
                self._connection.limit(None)

    def _send(self, op: str, head: dict[str, Any] | None, buffers: Sequence[Buffer]) -> None:
        if self._closed:
            raise self._lost("a connection that is closed")
        request = self._connection.prepare(REQUEST, op, head or {}, buffers)
        self._guarded(lambda: self._connection.send(request))

    def _receive(self, op: str) -> Message:
        message = self._guarded(self._connection.receive)
        if message.kind == FAILURE:
            kind_of_error, text = message.head.get("kind"), message.head.get("text")
            raise RemoteError(str(kind_of_error), str(text), op, self.address)
        return message

    def _guarded(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except BROKEN as error:
            reason = "a connection that was closed" if self._closed else reason_of(error)
            self._give_up()
            raise self._lost(reason) from error
        except BaseException:  # interrupted: the next message would be the answer to this request
            self._give_up()
            raise

    def _give_up(self) -> None:
        self._closed = True
        self._connection.hang_up()
        self._connection.close()

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(
            f"Lost the connection to {self.address}: {reason}. The last request may have been done "
            "or not. Connect again when that process is back, and repeat it."
        )


def _open(
    address: Address,
    secret: bytes,
    place: str,
    hello: dict[str, Any],
    deadline: float,
    tls: ssl.SSLContext | None,
    largest: int,
) -> Connection:
    """Connect to one address and verify the listener."""
    with kept(_reach(address, deadline, tls)) as sock:
        session, answer = introduce(
            sock,
            Secret(secret),
            place=place,
            wanted=address.place,
            hello=hello,
            peer=address.text,
            deadline=deadline,
        )
        sock.settimeout(None)
        if address.port:
            return Connection(sock, session=session, largest=largest)
        return Connection(sock, shared=answer.get("shared") is True, largest=largest)


def _reach(address: Address, deadline: float, tls: ssl.SSLContext | None) -> socket.socket:
    if address.port:
        left = max(deadline - time.monotonic(), 0.001)
        with kept(connected(address.host, address.port, left)) as sock:
            wait_until(sock, deadline)
            return own(tls.wrap_socket(sock, server_hostname=address.host)) if tls else sock
    require_own(address.path)
    with kept(own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))) as sock:
        wait_until(sock, deadline)
        sock.connect(address.path)
        return tune(sock)


_ENDING = 5.0  # seconds that handlers get to return when the listener closes
_LONGEST_TEXT = 1 << 16  # characters of an error's message


@final
class RequestServer:
    """Answers requests: each connection has a thread, in which the handler is called.

    The handler is given the caller and a request, and returns the head and the buffers of the
    answer; its exceptions become a `RemoteError` of `RequestClient.call`. Host "0.0.0.0" or "::"
    means all interfaces; port 0 lets the system choose. TLS is for TCP: Unix sockets do not leave
    the host, and are faster, more so with shared memory. A peer that wants another `place` in the
    cluster is refused. A connection has `patience` seconds to introduce itself.
    """

    def __init__(
        self,
        secret: bytes,
        handle: Callable[[Caller, Message], tuple[dict[str, Any], Sequence[Buffer]]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        unix: bool = True,
        shared: bool = True,
        largest: int = LARGEST,
        place: str = "",
        patience: float = PATIENCE,
    ) -> None:
        check_secret(secret)
        self._handle, self._at, self._place = handle, (host, port), place
        self._unix = unix and hasattr(socket, "AF_UNIX")
        self._shared = shared and can_share()
        self._largest = largest
        self._unix_socket: UnixSocket | None = None
        self._listener = Listener(
            Secret(secret),
            place,
            self._serve,
            admit=lambda caller: {"shared": self._shares_with(caller)},
            tls=tls,
            patience=patience,
        )

    def start(self) -> tuple[str, ...]:
        """Listen, and return the addresses for `RequestClient.connect`."""
        tcp = self._listener.listen(*self._at)
        addresses = [of_tcp(tcp, self._at[0])]
        if self._unix:
            with suppress(OSError):  # no such folder, or not permitted: TCP suffices
                self._unix_socket = UnixSocket()
                self._listener.listen_on(self._unix_socket.sock)
                addresses.insert(0, of_unix(self._unix_socket.path))
        self._listener.open()
        return tuple(at_place(address, self._place) for address in addresses)

    def close(self) -> None:
        """End all connections and threads; a handler that does not return is left behind."""
        self._listener.close(_ENDING)
        if self._unix_socket:
            self._unix_socket.remove()

    def _shares_with(self, caller: Caller) -> bool:
        return self._shared and caller.is_local

    def _serve(self, accepted: Accepted) -> None:
        sock, its_session, caller = accepted
        shared = self._shares_with(caller)
        sealed = None if caller.is_local else its_session
        connection = Connection(sock, session=sealed, shared=shared, largest=self._largest)
        try:
            while True:
                connection.send(self._answer(connection, caller))
        except (Garbled, Forged) as error:
            self._listener.refuse(caller.peer, str(error))
        except BROKEN:
            pass  # it has left, or this end was closed

    def _answer(self, connection: Connection, caller: Caller) -> Encoded:
        message = connection.receive()
        if message.kind != REQUEST:
            raise Garbled("it sent something that is not a request")
        try:
            head, buffers = self._handle(caller, message)
            del message  # so that shared memory can be given back with the answer
            return connection.prepare(REPLY, "", head, buffers)
        except Exception as error:
            text = str(error)[:_LONGEST_TEXT]
            return connection.prepare(FAILURE, "", {"kind": type(error).__name__, "text": text}, ())

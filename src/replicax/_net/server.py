"""The end of connections that answers: it admits whoever knows the secret, and handles requests."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

from replicax._net.address import at_place, of_tcp, of_unix
from replicax._net.connection import BROKEN, Connection
from replicax._net.frames import FAILURE, LARGEST, REPLY, REQUEST, Encoded, Garbled, Message
from replicax._net.handshake import PATIENCE, Caller, Forged, check_secret
from replicax._net.listener import Accepted, Listener, UnixSocket
from replicax._net.secret import Secret
from replicax._net.shared_memory import can_share

if TYPE_CHECKING:
    import ssl

    from replicax._net.frames import Buffer

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
        """Answer requests until the other side leaves."""
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
            raise Garbled("it sent what is no request")
        try:
            head, buffers = self._handle(caller, message)
            del message  # so that shared memory can be given back with the answer
            return connection.prepare(REPLY, "", head, buffers)
        except Exception as error:
            text = str(error)[:_LONGEST_TEXT]
            return connection.prepare(FAILURE, "", {"kind": type(error).__name__, "text": text}, ())

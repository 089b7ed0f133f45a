"""One end of a connection whose other end is known: it sends and receives whole messages."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

from replicax._net import TAG_SIZE, Forged, hang_up
from replicax._ps.wire._frames import (
    NOTHING,
    PREFIX_SIZE,
    Garbled,
    Message,
    Notes,
    as_bytes,
    empty,
    encode_head,
    first_bytes,
    lay_out,
    pieces_of,
    read_places,
    read_prefix,
    read_rest,
)
from replicax._ps.wire._shared import SMALLEST, Incoming, Outgoing

if TYPE_CHECKING:
    from replicax._net import Session
    from replicax._ps.wire._frames import Buffer

# Errors of `receive` and `send` after which the connection is useless.
BROKEN = (OSError, EOFError, MemoryError, Garbled)

_PIECES = 1024  # the most buffers that one sendmsg takes on Linux
_CHECKED = 1 << 20  # bytes received at once if a seal is checked, so that they are in the cache
_RECORD = 1 << 14  # bytes that TLS encrypts at once; smaller pieces are joined
# One call, and one wake-up, for everything expected.
_ALL = getattr(socket, "MSG_WAITALL", 0)
_NOT_FOR_CHILDREN = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Prepared(NamedTuple):
    """A message that can be sent."""

    pieces: list[Any]
    size: int
    file: int | None = None  # sent with the message, then closed


@final
class Channel:
    """Sends and receives messages, in one thread at a time; it closes the socket.

    A sealed message has two seals: after its first bytes, so that no memory is allocated for a
    forged length, and at its end. Without a session nothing is sealed: then only this user may be
    able to reach the socket. `largest` is the most bytes that the buffers of one message may have.
    Both ends must agree on `shared` memory, which needs a Unix socket.
    """

    def __init__(
        self,
        sock: socket.socket,
        largest: int,
        *,
        session: Session | None = None,
        shared: bool = False,
    ) -> None:
        self._sock = sock
        self._session = session
        self._largest = largest
        self._encrypted = isinstance(sock, ssl.SSLSocket)
        self._flags = 0 if self._encrypted else _ALL
        self._prefix = memoryview(bytearray(PREFIX_SIZE + (TAG_SIZE if session else 0)))
        self._shared = (Outgoing(), Incoming()) if shared else None
        self._ending = threading.RLock()  # a signal handler may close it at the same time

    def prepare(
        self, kind: int, op: str, head: dict[str, Any], buffers: Sequence[Buffer]
    ) -> Prepared:
        """Make a message. If this raises, nothing was sent, and the connection can go on."""
        body = lay_out(buffers, self._largest)
        text = encode_head(op, head)
        if self._shared:
            outgoing, incoming = self._shared
            written = outgoing.write(body) if body.size >= SMALLEST else None
            segment, file = written or (0, None)
            new = 0 if file is None else 1
            notes = Notes(segment, new, outgoing.forgotten(), incoming.unused())
            first = first_bytes(kind, text, body, notes)
            if segment:
                return Prepared([first], len(first), file)
        else:
            first = first_bytes(kind, text, body)
        return Prepared([first, *pieces_of(body)], len(first) + body.size)

    def send(self, message: Prepared) -> None:
        """Send a message. If this raises, the connection is useless."""
        pieces, left, file = message
        if self._session:
            pieces, left = _sealed(pieces, self._session), left + 2 * TAG_SIZE
        try:
            if self._encrypted:
                self._encrypt(pieces)
                return
            while left:
                sent = self._sock.sendmsg(pieces[:_PIECES])
                left -= sent
                if left:
                    pieces = _after(pieces, sent)
            if file is not None:
                socket.send_fds(self._sock, [b"f"], [file])
        finally:
            if file is not None:
                os.close(file)

    def receive(self) -> tuple[int, Message]:
        """Wait for a message; return its kind and itself. Raises `BROKEN` if none will come."""
        self._fill(self._prefix)
        if self._session:
            self._session.incoming.check(self._prefix[PREFIX_SIZE:], self._prefix[:PREFIX_SIZE])
        prefix = read_prefix(self._prefix[:PREFIX_SIZE], self._largest)
        data = bytearray(prefix.rest)
        sealed = self._receive_sealed(data, prefix.body, self._session) if self._session else None
        if sealed is None:
            self._fill(memoryview(data))
        op, head, notes = read_rest(data, prefix)
        body = self._find(notes, prefix.body) if notes != NOTHING else sealed
        if body is None:
            body = empty(prefix.body)
            self._fill(body)
        places = read_places(data, prefix)
        return prefix.kind, Message(op, head, [body[start:end] for start, end in places])

    def hang_up(self) -> None:
        """End the connection, from any thread, and wake threads that wait."""
        with self._ending:
            hang_up(self._sock)

    def close(self) -> None:
        """Free the socket and shared memory; call it only when no thread waits for the channel."""
        with self._ending:
            self._sock.close()
            self._shared = None

    def _fill(self, view: memoryview) -> None:
        left = len(view)
        while left:
            got = self._sock.recv_into(view, left, self._flags)
            if not got:
                raise EOFError
            left -= got
            if left:
                view = view[got:]

    def _receive_sealed(self, data: bytearray, size: int, session: Session) -> memoryview:
        """Receive everything after the first bytes; return the buffers if the seal is right."""
        mac = session.incoming.begin()
        body, tag = empty(size), memoryview(bytearray(TAG_SIZE))
        for part in (memoryview(data), body):
            for start in range(0, len(part), _CHECKED):
                piece = part[start : start + _CHECKED]
                self._fill(piece)
                mac.update(piece)
        self._fill(tag)
        session.incoming.conclude(mac, tag)
        return body

    def _find(self, notes: Notes, size: int) -> memoryview | None:
        """Follow a message's notes on shared memory; return its buffers if they are there."""
        if not self._shared:
            raise Garbled("it refers to memory, and nothing is shared")
        outgoing, incoming = self._shared
        outgoing.given_back(notes.unused)
        incoming.forget(notes.forgotten)
        if notes.new:
            said, files, *_ = socket.recv_fds(self._sock, 1, 1, _NOT_FOR_CHILDREN)
            if not said:
                raise EOFError
            if not files:
                raise Garbled("it announced memory, and sent none")
            try:
                incoming.add(notes.segment, files[0])
            finally:
                os.close(files[0])
        return incoming.read(notes.segment, size) if notes.segment else None

    def _encrypt(self, pieces: list[Any]) -> None:
        """Send by TLS, which takes no lists: small pieces are joined, large ones are not."""
        small = bytearray()
        for piece in pieces:
            data = as_bytes(piece)
            if len(small) + len(data) <= _RECORD:
                small += data
            else:
                self._sock.sendall(small)
                small = bytearray()
                self._sock.sendall(data)
        self._sock.sendall(small)


def reason_of(error: Exception) -> str:
    """A sentence on why there is no message."""
    match error:
        case TimeoutError():
            return "no answer in time"
        case EOFError() | ConnectionResetError() | BrokenPipeError():
            return "a peer that hung up"
        case Garbled():
            return f"a peer that broke the protocol, as {error}"
        case Forged():
            return str(error)
        case _:
            return str(error) or type(error).__name__


def _sealed(pieces: list[Any], session: Session) -> list[Any]:
    """The pieces of a message with its two seals; large ones are not copied."""
    first, *body = pieces
    prefix, rest = memoryview(first)[:PREFIX_SIZE], memoryview(first)[PREFIX_SIZE:]
    seal = session.outgoing
    begin = b"".join((prefix, seal.tag(prefix), rest))
    return [begin, *body, seal.tag(rest, *(as_bytes(piece) for piece in body))]


def _after(pieces: list[Any], sent: int) -> list[Any]:
    """The rest of the pieces after this many bytes."""
    for index, piece in enumerate(pieces):
        data = as_bytes(piece)
        if sent < len(data):
            return [data[sent:], *pieces[index + 1 :]]
        sent -= len(data)
    return []

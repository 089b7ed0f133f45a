"""One end of a connection whose other end is known: it sends and receives whole messages."""

from __future__ import annotations

import array
import os
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

from replicax._core.interrupts import uninterrupted
from replicax._net.frames import (
    LARGEST,
    LARGEST_HEAD,
    NOTHING,
    PREFIX_SIZE,
    Garbled,
    Message,
    Notes,
    as_bytes,
    empty,
    encode_head,
    encoded,
    lay_out,
    parse,
    read_prefix,
    read_rest,
)
from replicax._net.handshake import TAG_SIZE, Forged, wait_until
from replicax._net.shared_memory import SMALLEST, Incoming, Outgoing
from replicax._net.sockets import hang_up

if TYPE_CHECKING:
    from replicax._net.frames import Buffer, Encoded
    from replicax._net.handshake import Session

# Errors of `receive` and `send` after which the connection is useless.
BROKEN = (OSError, EOFError, MemoryError, Garbled)

_BUFFERED = 1 << 16  # bytes of a message that one read gets, as long as there are no more
_PIECES = 1024  # the most buffers that one sendmsg takes on Linux
_CHECKED = 1 << 18  # bytes received at once if a seal is checked, so that they are in the cache
_RECORD = 1 << 14  # bytes that TLS encrypts at once; smaller pieces are joined
# One call, and one wake-up, for everything expected.
_ALL = getattr(socket, "MSG_WAITALL", 0)
_AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)
_NOT_FOR_CHILDREN = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Connection:
    """Sends and receives messages, each in one thread at a time; it closes the socket.

    A sealed message has two seals: after its prefix, so that no memory is allocated for a forged
    length, and at its end. Nothing is parsed before its seal is checked. Without a session nothing
    is sealed: then only this user may be able to reach the socket. `largest` is the most bytes that
    the buffers of one message may have, `largest_head` the most bytes of JSON. Both ends must agree
    on `shared` memory, which needs a Unix socket.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        session: Session | None = None,
        shared: bool = False,
        largest: int = LARGEST,
        largest_head: int = LARGEST_HEAD,
    ) -> None:
        self.received = 0  # bytes; a sign of life, also during a large message
        self._sock = sock
        self._session = session
        self._limits = largest, largest_head
        self._encrypted = isinstance(sock, ssl.SSLSocket)
        self._flags = 0 if self._encrypted else _ALL
        self._buffer = memoryview(bytearray(_BUFFERED))
        self._start = self._end = 0  # of the bytes in the buffer
        self._tag = TAG_SIZE if session else 0
        self._shared = (Outgoing(), Incoming()) if shared else None
        self._files: list[int] = []  # received, and not yet used
        # Room for one file; the system closes more.
        self._room = socket.CMSG_LEN(array.array("i").itemsize) if shared else 0
        self._deadline: float | None = None
        self._ending = threading.RLock()  # a signal handler may close it at the same time

    def limit(self, deadline: float | None) -> None:
        """Raise TimeoutError from now on where a message takes longer; None waits for ever.

        The deadline is by `time.monotonic`.
        """
        self._deadline = deadline
        if deadline is None:
            self._sock.settimeout(None)

    def accept(self) -> None:
        """Take messages of the usual limits from now on."""
        self._limits = LARGEST, LARGEST_HEAD

    def prepare(
        self, kind: int, op: str, head: dict[str, Any], buffers: Sequence[Buffer]
    ) -> Encoded:
        """Encode a message. If this raises, nothing was sent, and the connection can go on."""
        body, text = lay_out(buffers, self._limits[0]), encode_head(op, head, self._limits[1])
        if not self._shared:
            return encoded(kind, text, body)
        outgoing, incoming = self._shared
        written = outgoing.write(body) if body.size >= SMALLEST else None
        segment, file = written or (0, None)
        forgotten, unused = outgoing.forgotten(), incoming.unused()
        if not (segment or forgotten or unused):
            return encoded(kind, text, body)
        new = 0 if file is None else 1
        return encoded(kind, text, body, Notes(segment, new, forgotten, unused), file)

    def send(self, message: Encoded) -> None:
        """Send a message. If this raises, the connection is useless."""
        pieces = message.pieces if message.body.sizes else [message.first]
        left = message.size
        if self._session:
            pieces, left = _sealed(pieces, self._session), left + 2 * TAG_SIZE
        ancillary: list[Any] = []
        if message.file is not None:
            files = array.array("i", [message.file])
            ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, files))
        try:
            if self._encrypted:
                if self._deadline is not None:
                    wait_until(self._sock, self._deadline)
                self._encrypt(pieces)
                return
            while left:
                if self._deadline is not None:
                    wait_until(self._sock, self._deadline)
                sent = self._sock.sendmsg(pieces[:_PIECES], ancillary)
                ancillary, left = [], left - sent
                if left:
                    pieces = _after(pieces, sent)
        finally:
            if message.file is not None:
                os.close(message.file)

    def receive(self) -> Message:
        """Wait for a message. Raises `BROKEN` if none will come."""
        session, tag = self._session, self._tag
        first = self._gather(PREFIX_SIZE + tag)
        if session:
            session.incoming.check(first[PREFIX_SIZE:], first[:PREFIX_SIZE])
        prefix = read_prefix(first, *self._limits)
        rest, size = prefix.rest, 0 if prefix.segment else prefix.body
        if rest + size + tag <= _BUFFERED:
            data = self._gather(rest + size + tag)
            if session:
                session.incoming.check(data[rest + size :], data[: rest + size])
            body = empty(size)
            if size:
                body[:] = data[rest : rest + size]
        else:
            data, body = memoryview(bytearray(rest)), empty(size)
            self._fill(data, body)
        op, head, notes, places = read_rest(data, prefix)
        if notes is not NOTHING:
            body = self._find(notes, prefix.body) or body
        return Message(op, head, [body[start:end] for start, end in places], prefix.kind)

    def fileno(self) -> int:
        return self._sock.fileno()

    def arrived(self) -> Iterator[Message]:
        """The small messages that are here, after one read that does not wait.

        Afterwards `is_amid` tells whether the beginning of one more is here. Raises as `receive`.
        Messages with the same bytes, as of workers in step, are one and the same.
        """
        if self._start:
            self._buffer[: self._end - self._start] = self._buffer[self._start : self._end]
            self._start, self._end = 0, self._end - self._start
        with suppress(BlockingIOError):
            got = self._sock.recv_into(self._buffer[self._end :], 0, _AT_ONCE)
            if not got:
                raise EOFError
            self._end += got
            self.received += got
        start, tag = PREFIX_SIZE + self._tag, self._tag
        while self._end - self._start >= start:
            here = self._buffer[self._start : self._end]
            first = bytes(here[:PREFIX_SIZE])
            end = start + _size_after(first, *self._limits)
            if len(here) < end + tag:
                return
            rest = bytes(here[start:end])
            if self._session:
                self._session.incoming.check(here[PREFIX_SIZE:start], first)
                self._session.incoming.check(here[end : end + tag], rest)
            self._start += end + tag
            yield _parsed(first + rest)

    @property
    def is_amid(self) -> bool:
        """Whether bytes have been read that `receive` has not taken."""
        return self._start < self._end

    def drain(self) -> None:
        """Discard all bytes until the other end hangs up."""
        with suppress(OSError):
            while self._sock.recv(_BUFFERED):
                pass

    def has_bytes(self) -> bool:
        """Whether bytes have come that `receive` has not taken, or the end of the connection."""
        decrypted = self._sock.pending() if isinstance(self._sock, ssl.SSLSocket) else 0
        if decrypted or self._start < self._end:
            return True
        polled = select.poll()
        polled.register(self._sock, select.POLLIN)
        return bool(polled.poll(0))

    def hang_up(self) -> None:
        """End the connection, from any thread, and wake threads that wait."""
        with self._ending:
            hang_up(self._sock)

    def close(self) -> None:
        """Free the socket and shared memory; call it only when no thread waits for them."""
        with self._ending:
            self._sock.close()
            self._shared = None
            while self._files:
                os.close(self._files.pop())

    def _gather(self, size: int) -> memoryview:
        """Wait for `size` bytes in the buffer; they stay there until the next call."""
        start = self._start
        if start == self._end:
            start = self._end = 0
        elif start + size > _BUFFERED:
            self._buffer[: self._end - start] = self._buffer[start : self._end]
            start, self._end = 0, self._end - start
        while self._end - start < size:
            if self._deadline is not None:
                wait_until(self._sock, self._deadline)
            view = self._buffer[self._end :]
            got = self._receive_files(view) if self._shared else self._sock.recv_into(view)
            if not got:
                raise EOFError
            self._end += got
            self.received += got
        self._start = start + size
        return self._buffer[start : self._start]

    def _receive_files(self, view: memoryview) -> int:
        got, messages, _, _ = self._sock.recvmsg_into([view], self._room, _NOT_FOR_CHILDREN)
        for _, kind, data in messages:
            if kind == socket.SCM_RIGHTS:
                self._files.extend(array.array("i", data))
            if len(self._files) > 1:
                raise Garbled("it sent memory that it has not announced")
        return got

    def _fill(self, *views: memoryview) -> None:
        """Receive bytes that the buffer cannot hold, and check their seal."""
        mac = self._session.incoming.begin() if self._session else None
        for view in views:
            there = min(self._end - self._start, len(view))
            view[:there] = self._buffer[self._start : self._start + there]
            self._start += there
            if mac:
                mac.update(view[:there])
            view, most = view[there:], _CHECKED if mac else len(view)
            while view:
                if self._deadline is not None:
                    wait_until(self._sock, self._deadline)
                got = self._sock.recv_into(view, min(most, len(view)), self._flags)
                if not got:
                    raise EOFError
                self.received += got
                if mac:
                    mac.update(view[:got])
                view = view[got:]
        if mac and self._session:
            self._session.incoming.conclude(mac, self._gather(TAG_SIZE))

    def _find(self, notes: Notes, size: int) -> memoryview | None:
        """Follow a message's notes on shared memory; return its buffers if they are there."""
        if not self._shared:
            raise Garbled("it refers to memory, and nothing is shared")
        outgoing, incoming = self._shared
        outgoing.given_back(notes.unused)
        incoming.forget(notes.forgotten)
        if notes.new:
            if not self._files:
                raise Garbled("it announced memory, and sent none")
            file = self._files.pop()
            try:
                incoming.add(notes.segment, file)
            finally:
                os.close(file)
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


@final
class Outbox(Connection):
    """A connection by TCP whose `send` never blocks: bytes that do not fit are queued.

    Any thread may send. The messages of one thread arrive in order.
    """

    def __init__(self, sock: socket.socket, session: Session, **limits: Any) -> None:
        super().__init__(sock, session=session, **limits)
        self._changed = threading.Condition()
        self._waiting: deque[memoryview] = deque()
        self._closed = False

    def start(self) -> None:
        """Start the thread that sends queued bytes, until `close`."""
        self._sock.settimeout(None)
        threading.Thread(target=self._push, name="replicax-outbox", daemon=True).start()

    def send(self, message: Encoded) -> None:
        """Send a message, now or later.

        No signal interrupts it, because the next message could not follow half a message.
        """
        with uninterrupted, self._changed:
            assert self._session
            pieces = message.pieces if message.body.sizes else [message.first]
            for part in map(as_bytes, _sealed(pieces, self._session)):
                sent = 0 if self._waiting else self._send_at_once(part)
                if sent < len(part):
                    self._waiting.append(part[sent:])
            if self._waiting:
                self._changed.notify_all()

    def hang_up(self) -> None:
        """End the connection, from any thread, wake threads that wait, and drop queued bytes."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        super().hang_up()

    def close(self) -> None:
        """Hang up, and free the socket; call it only when no thread waits for a message."""
        self.hang_up()
        super().close()

    def _send_at_once(self, part: memoryview) -> int:
        try:
            return self._sock.send(part, _AT_ONCE)
        except BlockingIOError:
            return 0
        except OSError:  # broken: `receive` raises
            return len(part)

    def _push(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                part = self._waiting[0]
            try:
                sent = self._sock.send(part[:_CHECKED])
            except OSError:
                sent = len(part)
            with self._changed:
                if self._waiting:
                    self._waiting.popleft()
                    if sent < len(part):
                        self._waiting.appendleft(part[sent:])


@lru_cache(16)
def _size_after(first: bytes, largest: int, largest_head: int) -> int:
    prefix = read_prefix(first, largest, largest_head)
    return prefix.rest + prefix.body


@lru_cache(16)
def _parsed(whole: bytes) -> Message:
    return parse(memoryview(whole))


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
    seal, (first, *body) = session.outgoing, pieces
    prefix, rest = first[:PREFIX_SIZE], first[PREFIX_SIZE:]
    begin = b"".join((prefix, seal.tag(prefix), rest))
    end = seal.tag(rest, *(as_bytes(piece) for piece in body))
    return [begin, *body, end] if body else [begin + end]


def _after(pieces: list[Any], sent: int) -> list[Any]:
    """The rest of the pieces after this many bytes."""
    for index, piece in enumerate(pieces):
        data = as_bytes(piece)
        if sent < len(data):
            return [data[sent:], *pieces[index + 1 :]]
        sent -= len(data)
    return []

"""A TCP connection that carries frames: a JSON header, and optional bytes after it.

    length of the header, length of the payload | seal | header | payload | seal

Nothing is parsed before its seal is checked.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

from replicax._core.interrupts import uninterrupted
from replicax._net import TAG_SIZE

if TYPE_CHECKING:
    from io import BufferedReader

    from replicax._net import Session

_LENGTHS = struct.Struct("!IQ")
_LARGEST = 1 << 28  # bytes of JSON
_SMALL = 4096
_CHUNK = 1 << 18
BROKEN = (OSError, EOFError, ValueError, RecursionError)  # raised by `receive` at the end


class Frame(NamedTuple):
    """A received frame."""

    header: dict[str, Any]
    payload: bytes = b""


def encode(content: Any) -> bytes:
    """Encode JSON; TypeError or ValueError for other content."""
    return json.dumps(content, separators=(",", ":")).encode()


def with_value(header: dict[str, Any], value: bytes) -> bytes:
    """Encode a header that is not empty, with a `"value"` that is already encoded."""
    return b'%b,"value":%b}' % (encode(header)[:-1], value)


def decode(data: bytes) -> dict[str, Any]:
    """Decode the JSON of `encode`."""
    return json.loads(data)


@final
class Wire:
    """One end of a connection. Sending never blocks: data that does not fit is queued."""

    def __init__(self, sock: socket.socket, session: Session) -> None:
        self.received = 0  # bytes; a sign of life, also during a large payload
        self._sock = sock
        self._session = session
        self._file = cast("BufferedReader", sock.makefile("rb", _CHUNK // 4))
        self._changed = threading.Condition()
        self._waiting: deque[memoryview] = deque()
        self._closed = False

    def start(self) -> None:
        """Start the thread that sends queued data, until `close`."""
        self._sock.settimeout(None)
        threading.Thread(target=self._push, name="replicax-wire", daemon=True).start()

    def send(self, frame: bytes, payload: bytes = b"") -> None:
        """Send a frame, now or later. Frames of one thread arrive in order.

        `frame` is a header from `encode`, `payload` the bytes after it. No signal interrupts it,
        because the next frame could not follow half a frame.
        """
        lengths, seal = _LENGTHS.pack(len(frame), len(payload)), self._session.outgoing
        with uninterrupted, self._changed:
            begin = b"".join((lengths, seal.tag(lengths), frame))
            end = seal.tag(frame, payload)
            sent = (begin, payload, end) if payload else (begin + end,)
            parts = [memoryview(part) for part in sent]
            while parts and not self._waiting:
                sent = self._send_at_once(parts[0])
                if sent < len(parts[0]):
                    self._waiting.append(parts.pop(0)[sent:])
                else:
                    parts.pop(0)
            self._waiting.extend(parts)
            if self._waiting:
                self._changed.notify_all()

    def receive(self, *, small: bool = False) -> Frame:
        """Wait for a frame. Raises one of `BROKEN` at the end, or for an invalid frame.

        With `small`, frames over 4 KiB are invalid: the peer is not trusted yet.
        """
        seal = self._session.incoming
        lengths, tag = self._read(_LENGTHS.size), self._read(TAG_SIZE)
        seal.check(tag, lengths)
        length, size = _LENGTHS.unpack(lengths)
        if length > _LARGEST or (small and length + size > _SMALL):
            raise EOFError
        frame, payload = self._read(length), self._read(size) if size else b""
        seal.check(self._read(TAG_SIZE), frame, payload)
        header = json.loads(frame)
        if not isinstance(header, dict):
            raise EOFError
        return Frame(cast("dict[str, Any]", header), payload)

    def drain(self) -> None:
        """Discard all data until the other end hangs up."""
        with suppress(*BROKEN):
            while self._file.read1(_CHUNK):
                pass

    def hang_up(self) -> None:
        """End the connection, which wakes the receiving thread; that thread closes it."""
        with suppress(OSError):  # the other end may have hung up first
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, and drop queued data."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        self.hang_up()
        self._file.close()
        self._sock.close()

    def _send_at_once(self, part: memoryview) -> int:
        try:
            return self._sock.send(part, socket.MSG_DONTWAIT)
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
                sent = self._sock.send(part[:_CHUNK])
            except OSError:
                sent = len(part)
            with self._changed:
                if self._waiting:
                    self._waiting.popleft()
                    if sent < len(part):
                        self._waiting.appendleft(part[sent:])

    def _read(self, size: int) -> bytes:
        if size <= _CHUNK:
            data = self._file.read(size)
            if len(data) < size:
                raise EOFError
            self.received += size
            return data
        whole = BytesIO()  # its `getvalue` does not copy
        while whole.tell() < size:
            whole.write(self._read(min(_CHUNK, size - whole.tell())))
        return whole.getvalue()

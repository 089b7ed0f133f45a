"""A file of messages: the coordinator's changes on a server since a snapshot or the start.

Pushes of closures are not in it. A server that dies loses some pushes, which training can do
without; it must not lose that a variable was made, or what a program has assigned.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

from replicax._net import Message, encode, parse

if TYPE_CHECKING:
    from pathlib import Path

# The checksum and the length of the message that follows.
_LENGTH = struct.Struct("!IQ")


@final
class Journal:
    """A journal that is being written.

    Each message is handed to the system before it is answered, so it outlives this process. It is
    not forced to the disk, as snapshots are: a machine that loses power may lose the last seconds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: Any = open(path, "xb", buffering=0)  # noqa: SIM115 (`close` does)

    def append(self, op: str, head: dict[str, Any], buffers: Sequence[Any] = ()) -> None:
        """Write a message."""
        message = encode(op, head, buffers)
        first, *pieces = message.pieces
        checksum = zlib.crc32(first)
        for piece in pieces:
            checksum = zlib.crc32(piece, checksum)
        with self._lock:
            if self._file is None:
                return  # this server has ended, and its further changes do not count
            for part in (_LENGTH.pack(checksum, message.size) + first, *pieces):
                _write(self._file, part)

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()


def records(path: Path) -> Iterator[Message]:
    """The messages of a journal; a truncated last one, which was never answered, is left out."""
    with open(path, "rb") as file:
        while len(lengths := file.read(_LENGTH.size)) == _LENGTH.size:
            checksum, size = _LENGTH.unpack(lengths)
            if size > path.stat().st_size - file.tell():
                return
            data = memoryview(file.read(size))
            if zlib.crc32(data) != checksum:
                return
            yield parse(data)


def _write(file: Any, data: Any) -> None:
    view = memoryview(data).cast("B")
    while len(view):
        view = view[file.write(view) :]

"""A file of messages: the coordinator's changes on a server since a snapshot or the start.

Pushes of closures are not in it. A server that dies loses some pushes, which training can do
without; it must not lose that a variable was made, or what a program has assigned.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

if TYPE_CHECKING:
    from pathlib import Path

# The checksum of what follows, the length of the JSON, and that of the buffers behind it.
_LENGTHS = struct.Struct("!IIQ")


class Record(NamedTuple):
    """A message in a journal."""

    op: str
    head: dict[str, Any]
    buffers: list[memoryview]


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
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        text = json.dumps([op, head, [len(view) for view in views]]).encode()
        checksum = zlib.crc32(text)
        for view in views:
            checksum = zlib.crc32(view, checksum)
        size = sum(len(view) for view in views)
        with self._lock:
            if self._file is None:
                return  # this server has ended, and its further changes do not count
            for part in (_LENGTHS.pack(checksum, len(text), size) + text, *views):
                _write(self._file, part)

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()


def records(path: Path) -> Iterator[Record]:
    """The messages of a journal; a truncated last one, which was never answered, is left out."""
    with open(path, "rb") as file:
        while len(lengths := file.read(_LENGTHS.size)) == _LENGTHS.size:
            checksum, text_size, size = _LENGTHS.unpack(lengths)
            left = path.stat().st_size - file.tell()
            if text_size + size > left:
                return
            data = memoryview(file.read(text_size + size))
            if zlib.crc32(data) != checksum:
                return
            op, head, sizes = json.loads(bytes(data[:text_size]))
            buffers, start = [], text_size
            for length in sizes:
                buffers.append(data[start : start + length])
                start += length
            yield Record(op, head, buffers)


def _write(file: Any, data: Any) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]

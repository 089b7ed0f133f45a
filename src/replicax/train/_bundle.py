"""Reading TensorFlow's checkpoint files: `PREFIX.index` and `PREFIX.data-00000-of-00001`.

The index is a sorted table of messages by name, in blocks with a checksum each; it says where the
bytes of each tensor are. Everything is checked by CRC-32C before it is used.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replicax._core.errors import CheckpointError, UsageError
from replicax._core.wire import TYPES, crc32c_function, fields, masked, read_varint
from replicax.train._arrays import dtype_of

INDEX = ".index"
STATE = "checkpoint"
"""The file that says which checkpoint of a folder is the latest."""

_FOOTER, _MAGIC = 48, 0xDB4775248B80FB57  # bytes at the end of a table, and its last eight
_TRAILER = 5  # bytes behind a block: how it is compressed, and its checksum
_NAMES = {number: name for name, number in TYPES.items()}

_Slice = tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """Where a tensor is: `size` bytes from `offset` on in the file number `shard`.

    `kind` is the number of its type. With `slices` it is stored in pieces, under other names.
    """

    kind: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    slices: bool

    @property
    def dtype(self) -> np.dtype:
        """The tensor's type; `object` for text and for types without numbers."""
        kind = _NAMES.get(self.kind, "string")
        return np.dtype(object) if kind == "string" else dtype_of(kind)


class Bundle:
    """The tensors of one of TensorFlow's checkpoints, by name; each is read when it is asked for.

    `prefix` is the path without `.index`.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix, self._crc32c = prefix, crc32c_function()
        self.index = self._bytes(INDEX)
        try:
            self._shards, self.entries = self._parsed(dict(self._table()))
        except UsageError:  # intact, but of another kind
            raise
        except (IndexError, KeyError, ValueError, TypeError) as error:
            raise self._damaged(INDEX, str(error)) from error

    def _parsed(self, table: dict[bytes, bytes]) -> tuple[int, dict[str, Entry]]:
        header = dict(fields(table.pop(b"")))
        if header.get(2):
            raise self._unread("it was written by a machine with big-endian numbers")
        if dict(fields(header.get(3, b""))).get(2, 0) > 1:
            raise self._unread("it has a later version of the format")
        # Pieces of tensors have names that begin with a zero byte.
        entries = {
            name.decode(): _entry(value) for name, value in table.items() if name[:1] != b"\0"
        }
        return header[1], entries

    def _table(self) -> Iterator[tuple[bytes, bytes]]:
        data = self.index
        footer = data[-_FOOTER:]
        if len(data) < _FOOTER or int.from_bytes(footer[-8:], "little") != _MAGIC:
            raise ValueError("its end is missing")
        _, place = _handle(footer, 0)
        top, _ = _handle(footer, place)
        for _, value in self._block(top):
            yield from self._block(_handle(value, 0)[0])

    def _block(self, where: _Slice) -> Iterator[tuple[bytes, bytes]]:
        begin, end = where[0], sum(where)
        trailer = self.index[end : end + _TRAILER]
        stored = int.from_bytes(trailer[1:], "little")
        if len(trailer) < _TRAILER or self._checksum(self.index[begin : end + 1]) != stored:
            raise ValueError("the checksum of a block is wrong")
        if trailer[0]:
            raise self._unread("its index is compressed")
        block = self.index[begin:end]
        # The entries are followed by the places of some of them, 4 bytes each, and their count.
        end = len(block) - 4 * (1 + int.from_bytes(block[-4:], "little"))
        place, key = 0, b""
        while place < end:
            shared, place = read_varint(block, place)
            own, place = read_varint(block, place)
            size, place = read_varint(block, place)
            key = key[:shared] + block[place : place + own]
            place += own + size
            yield key, block[place - size : place]

    def read(self, name: str) -> np.ndarray:
        """The value of a tensor: text as an array of `bytes`."""
        entry = self.entries[name]
        if entry.slices:
            raise self._unread(
                f"it has {name!r} in pieces, as TensorFlow 1 wrote divided variables"
            )
        kind = _NAMES.get(entry.kind)
        if kind is None:
            raise self._unread(f"the type of {name!r} is not numeric, number {entry.kind}")
        file = f".data-{entry.shard:05d}-of-{self._shards:05d}"
        data = self._bytes(file, entry.offset, entry.size)
        wrong = self._damaged(file, f"the checksum of {name!r} is wrong")
        if kind == "string":
            return self._texts(data, entry, wrong)
        size = math.prod(entry.shape) * entry.dtype.itemsize
        if len(data) != size or self._checksum(data) != entry.checksum:
            raise wrong
        return np.frombuffer(data, entry.dtype).reshape(entry.shape)

    def _bytes(self, file: str, offset: int = 0, size: int = -1) -> bytes:
        try:
            with open(self._prefix + file, "rb") as opened:
                opened.seek(offset)
                return opened.read(size)
        except OSError as error:
            raise CheckpointError(
                f"Cannot read {self._prefix + file!r}, a file of a TensorFlow checkpoint: "
                f"{error.strerror}. Copy the {INDEX} file and all data files of the checkpoint."
            ) from error

    def _texts(self, data: bytes, entry: Entry, wrong: CheckpointError) -> np.ndarray:
        """Texts: their lengths, a checksum of the lengths, then all bytes in a row."""
        sizes, place = [], 0
        try:
            for _ in range(math.prod(entry.shape)):
                size, place = read_varint(data, place)
                sizes.append(size)
        except (IndexError, ValueError) as error:
            raise wrong from error
        # The checksum is of the lengths as they are in memory, not in the file.
        lengths = b"".join(size.to_bytes(8 if size >> 32 else 4, "little") for size in sizes)
        stored, place = data[place : place + 4], place + 4
        if self._checksum(lengths + stored + data[place:]) != entry.checksum or (
            self._checksum(lengths) != int.from_bytes(stored, "little")
            or place + sum(sizes) != len(data)
        ):
            raise wrong
        texts = np.empty(len(sizes), object)
        for index, size in enumerate(sizes):
            texts[index], place = data[place : place + size], place + size
        return texts.reshape(entry.shape)

    def _checksum(self, data: bytes) -> int:
        return masked(self._crc32c(data))

    def _damaged(self, file: str, what: str) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint {self._prefix!r} is damaged: of {os.path.basename(self._prefix)}"
            f"{file}, {what}. Copy it again, or use an older one."
        )

    def _unread(self, what: str) -> UsageError:
        return UsageError(
            f"Cannot read the TensorFlow checkpoint {self._prefix!r}: {what}. Save it again with "
            "`tf.train.Checkpoint` and its default options."
        )


def _handle(data: bytes, place: int) -> tuple[_Slice, int]:
    """The start and size of a block, and the end of this handle."""
    offset, place = read_varint(data, place)
    size, place = read_varint(data, place)
    return (offset, size), place


def _entry(data: bytes) -> Entry:
    found: dict[int, Any] = {}
    pieces = False
    for field, value in fields(data):
        found[field], pieces = value, pieces or field == 7
    axes = [dict(fields(one)) for field, one in fields(found.get(2, b"")) if field == 2]
    return Entry(
        kind=found.get(1, 0),
        shape=tuple(axis.get(1, 0) for axis in axes),
        shard=found.get(3, 0),
        offset=found.get(4, 0),
        size=found.get(5, 0),
        checksum=int.from_bytes(found.get(6, b""), "little"),
        slices=pieces,
    )


def is_bundle(path: str) -> bool:
    """Whether a path is the prefix of one of TensorFlow's checkpoints."""
    return os.path.isfile(path + INDEX)


def bundles(directory: str) -> list[str]:
    """The prefixes of TensorFlow's checkpoints that a folder's file `checkpoint` lists.

    The latest comes last; checkpoints that are gone are left out.
    """
    try:
        text = Path(directory, STATE).read_text()
    except (OSError, UnicodeDecodeError):
        return []
    lines = re.findall(r'^(all_)?model_checkpoint_paths?: "((?:[^"\\]|\\.)*)"', text, re.MULTILINE)
    lines.sort(key=lambda line: not line[0])  # the first line names the latest
    paths = [
        os.path.join(directory, path.encode().decode("unicode_escape").encode("latin-1").decode())
        for _, path in lines
    ]
    return [path for path in dict.fromkeys(reversed(paths)) if is_bundle(path)][::-1]

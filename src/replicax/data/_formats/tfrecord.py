"""TFRecord files: records of bytes between checksums. example.py reads the bytes.

A record is: its length (8 bytes, little-endian), the checksum of these 8 bytes, the contents, the
checksum of the contents. A checksum is a masked CRC-32C, 4 bytes, little-endian.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, BinaryIO, final

from replicax._core.errors import CorruptRecord, UsageError, checks_types
from replicax._core.folder import named
from replicax._core.wire import crc32c_function, masked
from replicax.data._formats.format import open_bytes, window_bits_of

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")

# Bytes read at a time, because a damaged length may claim any size.
_PIECE = 16 * 1024 * 1024

# The writer's buffer: with Python's 8 KB every third small image would be a system call.
_BUFFER = 256 * 1024


@dataclass(frozen=True)
class TFRecordFormat:
    """The records of a TFRecord file as `bytes`; a position is a byte offset.

    **Differs from TF:** a file that ends within the length of a record, or a GZIP file that ends
    within its own checksum, is an error too.
    """

    compression: str | None = None

    def __post_init__(self) -> None:
        window_bits_of(self.compression)

    def records(self, path: str, start: int | None) -> Generator[tuple[bytes, int], None, None]:
        """Yield (record, offset behind it), from offset `start`."""
        crc32c, offset, checked = crc32c_function(), start or 0, b""
        with open_bytes(path, self.compression, offset) as file:
            while header := file.read(_HEADER.size):
                if len(header) < _HEADER.size:
                    raise _cut_off(path, offset)
                length, checksum = _HEADER.unpack(header)
                # Records of one length share these 12 bytes, which need no second check.
                if header != checked and masked(crc32c(header[: _LENGTH.size])) != checksum:
                    raise _corrupt(path, offset, "length")
                checked, end = header, length + _CHECKSUM.size
                record = _read(file, end)
                if len(record) < end:
                    raise _cut_off(path, offset)
                contents = record[:length]
                if masked(crc32c(contents)) != _CHECKSUM.unpack_from(record, length)[0]:
                    raise _corrupt(path, offset, "contents")
                offset += _HEADER.size + end
                yield contents, offset


@final
class TFRecordWriter:
    """Write records of bytes to a TFRecord file; the counterpart of `tf.io.TFRecordWriter`.

    TensorFlow reads these files, and `TFRecordDataset` reads TensorFlow's.

    Args:
        path: The file, which is made anew.
        options: The compression: None, `"GZIP"` or `"ZLIB"`.

    Raises:
        UsageError: If the file cannot be made, or there is no such compression.

    Example:
        >>> import os, tempfile
        >>> import replicax as rx
        >>> path = os.path.join(tempfile.mkdtemp(), "numbers.tfrecord")
        >>> with rx.data.TFRecordWriter(path) as writer:
        ...     for number in range(3):
        ...         writer.write(rx.data.make_example({"number": number}))
        >>> features = {"number": rx.data.FixedLenFeature((), int)}
        >>> for record in rx.data.TFRecordDataset(path):
        ...     print(rx.data.parse_single_example(record, features)["number"])
        0
        1
        2
    """

    @checks_types
    def __init__(self, path: str | bytes | os.PathLike[str], options: str | None = None) -> None:
        window_bits = window_bits_of(options)
        self._crc32c = crc32c_function()
        self._path = os.fsdecode(path)
        try:
            self._file = open(path, "wb", _BUFFER)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise UsageError(
                f"Cannot write {self._path!r}: {error.strerror}. Make its folder first, or choose "
                "another."
            ) from error
        self._deflater = zlib.compressobj(wbits=window_bits) if window_bits else None

    def write(self, record: bytes) -> None:
        """Append a record.

        Raises:
            UsageError: If it is not `bytes`, or the writer is closed.
        """
        if not isinstance(record, bytes | bytearray | memoryview):
            raise UsageError(
                f"Cannot write a {type(record).__name__} as a record: it must be bytes. Use "
                "`make_example`, or encode the text."
            )
        self._check_open()
        record = bytes(record)
        length = _LENGTH.pack(len(record))
        with named(self._path):
            self._put(length + _CHECKSUM.pack(masked(self._crc32c(length))))
            self._put(record)
            self._put(_CHECKSUM.pack(masked(self._crc32c(record))))

    def flush(self) -> None:
        """Hand what was written to the operating system, so that a reader sees it.

        Raises:
            UsageError: If the writer is closed.
        """
        self._check_open()
        with named(self._path):
            if self._deflater:
                self._file.write(self._deflater.flush(zlib.Z_SYNC_FLUSH))
            self._file.flush()

    def close(self) -> None:
        """Finish the file; a second time, do nothing."""
        if self._file.closed:
            return
        with named(self._path), self._file:
            if self._deflater:
                self._file.write(self._deflater.flush())

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _put(self, data: bytes) -> None:
        self._file.write(self._deflater.compress(data) if self._deflater else data)

    def _check_open(self) -> None:
        if self._file.closed:
            raise UsageError(
                f"The writer of {self._path!r} is closed. Write before `close`, inside the `with` "
                "block."
            )


def _read(file: BinaryIO, size: int) -> bytes:
    """`size` bytes, or fewer at the end."""
    if size <= _PIECE:
        return file.read(size)
    pieces: list[Any] = []
    while size > 0 and (piece := file.read(min(size, _PIECE))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _cut_off(path: str, offset: int) -> CorruptRecord:
    return CorruptRecord(
        f"{path!r} is cut off in the record at byte {offset}. Write or copy the file again."
    )


def _corrupt(path: str, offset: int, part: str) -> CorruptRecord:
    return CorruptRecord(
        f"The checksum of the {part} of the record at byte {offset} of {path!r} is wrong. The file "
        "is damaged, compressed or no TFRecord file: write it again, or pass its compression."
    )

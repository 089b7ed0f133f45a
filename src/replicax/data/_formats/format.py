"""File formats: their protocol, the opening of plain or compressed files, and lines of text.

A position is plain data. It counts uncompressed bytes, so that it means the same for every
compression; going there in a compressed file costs reading up to it.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, final

from replicax._core.errors import CorruptRecord, UsageError

# zlib's `wbits` for each container; None for uncompressed bytes
WINDOW_BITS = {None: None, "": None, "GZIP": 31, "ZLIB": 15}

_BUFFER = 256 * 1024  # tf.data's default


class FileFormat(Protocol):
    """How one file becomes elements; implementations are frozen dataclasses of options."""

    def records(self, path: str, start: Any) -> Generator[tuple[Any, Any], None, None]:
        """Yield (element, position after it), from position `start` (None: the beginning).

        The file is open from the first element until the iterator is closed or ends.
        """
        ...


def open_bytes(path: str, compression: str | None = None, start: int = 0) -> BinaryIO:
    """Open a file for reading its uncompressed bytes from number `start` on.

    A read of damaged or truncated compressed bytes raises CorruptRecord.
    """
    window_bits = window_bits_of(compression)
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 - whoever reads closes it
    except OSError as error:
        raise UsageError(
            f"Cannot open {path!r}: {error.strerror}. Check the path on this machine."
        ) from error
    if window_bits is None:
        file.seek(start)
        return io.BufferedReader(file, _BUFFER)
    stream = io.BufferedReader(_Inflated(file, window_bits, path), _BUFFER)
    while start > 0:
        passed = len(stream.read(min(start, _BUFFER)))
        if not passed:
            break
        start -= passed
    return stream


def window_bits_of(compression: str | None) -> int | None:
    """zlib's `wbits` for this compression; None without compression."""
    if compression not in WINDOW_BITS:
        raise UsageError.of("compression", "None, 'GZIP' or 'ZLIB'", compression)
    return WINDOW_BITS[compression]


@final
class _Inflated(io.RawIOBase):
    """The contents of a compressed file, which may be several compressed files in a row."""

    def __init__(self, file: io.RawIOBase, window_bits: int, path: str) -> None:
        self._file = file
        self._window_bits = window_bits
        self._path = path
        self._inflater = zlib.decompressobj(window_bits)
        self._packed = b""  # read, but not inflated yet
        self._between = True  # at the start of a compressed file, or behind the last one

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while True:
            packed = self._packed or self._file.read(_BUFFER)
            if not packed:
                if self._between:
                    return 0
                raise self._damaged("it is cut off")
            contents = self._inflate(packed, len(buffer))
            if contents:
                buffer[: len(contents)] = contents
                return len(contents)

    def _inflate(self, packed: bytes, size: int) -> bytes:
        if self._between:
            packed = packed.lstrip(b"\0")  # padding, which gzip allows
        self._between = self._between and not packed
        try:
            contents = self._inflater.decompress(packed, size)
        except zlib.error as error:
            raise self._damaged(str(error)) from error
        self._packed = self._inflater.unconsumed_tail
        if self._inflater.eof:
            self._packed, self._between = self._inflater.unused_data, True
            self._inflater = zlib.decompressobj(self._window_bits)
        return contents

    def _damaged(self, fault: str) -> CorruptRecord:
        return CorruptRecord(
            f"{self._path!r} is damaged: {fault}. Write the file again, or pass the compression it "
            "was written with."
        )


# uncompressed bytes and lines before this position
LinePosition = tuple[int, int]


@dataclass(frozen=True)
class TextFormat:
    r"""Lines of UTF-8 text as `str`, without the `\n` or `\r\n` at their end.

    **Differs from TF:** a `\r` inside of a line stays, and a byte order mark at the beginning of
    the file is left out.
    """

    compression: str | None = None

    def __post_init__(self) -> None:
        window_bits_of(self.compression)

    def records(
        self, path: str, start: LinePosition | None
    ) -> Generator[tuple[str, LinePosition], None, None]:
        """Yield (line, position after it), from position `start`."""
        for line, position in lines_of(path, self.compression, start):
            yield line.removesuffix("\n").removesuffix("\r"), position


def lines_of(
    path: str, compression: str | None, start: LinePosition | None
) -> Generator[tuple[str, LinePosition], None, None]:
    """Yield (line with its end, position after it), from position `start`."""
    offset, number = start or (0, 0)
    with open_bytes(path, compression, offset) as file:
        for raw in file:
            try:
                line = raw.decode()
            except UnicodeDecodeError as error:
                raise CorruptRecord(
                    f"Line {number + 1} of {path!r} is not UTF-8: byte 0x{raw[error.start]:02x} at "
                    f"column {error.start}. Convert the file, or pass its compression."
                ) from error
            if offset == 0:
                line = line.removeprefix("\ufeff")
            offset += len(raw)
            number += 1
            yield line, (offset, number)

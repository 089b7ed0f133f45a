"""Text files: one element per line. csv.py reads lines that are rows of a table."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from replicax._core.errors import CorruptRecord
from replicax.data._formats.format import open_bytes, window_bits_of

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

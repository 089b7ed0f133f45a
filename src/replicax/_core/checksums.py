"""CRC-32C, as TensorFlow's files have it: records, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable

from replicax._core.errors import needs


def crc32c_function() -> Callable[[bytes], int]:
    """The function that computes a CRC-32C."""
    with needs("This file format is read and written by the package google-crc32c", extra="data"):
        import google_crc32c
    return google_crc32c.value


def masked(checksum: int) -> int:
    """A checksum as it stands in files."""
    # The format rotates it, because the checksum of data that holds its own is degenerate.
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF

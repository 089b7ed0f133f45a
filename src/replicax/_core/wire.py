"""The parts of TensorFlow's files: messages of protobuf, numbers of types, and CRC-32C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from replicax._core.errors import needs

TYPES = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7,
    "complex64": 8, "int64": 9, "bool": 10, "bfloat16": 14, "uint16": 17, "complex128": 18,
    "float16": 19, "uint32": 22, "uint64": 23,
}  # fmt: skip
"""The numbers of TensorFlow's types, its `DataType`."""

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # kinds of fields
_WIDTHS = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_LONGEST = 63  # bits before the last byte of a varint


def varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3 | _VARINT) + varint(value)


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """A number and its end. IndexError if the bytes end within it, ValueError beyond 64 bits."""
    value = shift = 0
    while True:
        byte = data[place]
        place, value = place + 1, value | (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
        if shift > _LONGEST:
            raise ValueError("a number is too long")


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message in order: a number, and an integer or bytes.

    IndexError if the bytes end within a field, ValueError if they are no message.
    """
    place = 0
    while place < len(data):
        key, place = read_varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = read_varint(data, place)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, place = read_varint(data, place)
        elif kind in _WIDTHS:
            size = _WIDTHS[kind]
        else:
            raise ValueError("a field of another kind")
        if place + size > len(data):
            raise ValueError("the end is missing")
        yield key >> 3, data[place : place + size]
        place += size


def crc32c_function() -> Callable[[bytes], int]:
    with needs("This file format", extra="data"):
        import google_crc32c
    return google_crc32c.value


def masked(checksum: int) -> int:
    """A checksum in the form of files: the checksum of data that holds its own is degenerate."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF

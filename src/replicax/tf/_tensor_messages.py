"""Arrays as bytes: TensorFlow's message `TensorProto`, as its `serialize_tensor` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from replicax._core.errors import CorruptRecord, UsageError
from replicax.data._host import HostTensor
from replicax.tf._calls import array, hosted, numpy_dtype
from replicax.tf._dtypes import as_dtype

# The numbers of the types, and of the message's fields.
_TYPES = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7,
    "complex64": 8, "int64": 9, "bool": 10, "bfloat16": 14, "uint16": 17, "complex128": 18,
    "float16": 19, "uint32": 22, "uint64": 23,
}  # fmt: skip
_TYPE, _SHAPE, _CONTENT, _TEXT = 1, 2, 4, 8
_AXIS, _SIZE = 2, 1
_VARINT, _BYTES = 0, 2  # kinds on the wire


def serialize_tensor(tensor: Any, name: str | None = None) -> HostTensor:
    """An array as bytes, which `parse_tensor` reads, TensorFlow's, too."""
    found = np.asarray(array(tensor)[1])
    text = found.dtype.kind in "OSU"
    number = _TYPES["string" if text else found.dtype.name]
    axes = b"".join(_field(_AXIS, _number(_SIZE, size)) for size in found.shape)
    parts = [_number(_TYPE, number), _field(_SHAPE, axes)]
    if text:
        texts = found.ravel().tolist()
        parts += [_field(_TEXT, one.encode() if isinstance(one, str) else one) for one in texts]
    else:
        parts.append(_field(_CONTENT, np.ascontiguousarray(found).tobytes()))
    return HostTensor.of(b"".join(parts))


def parse_tensor(serialized: Any, out_type: Any, name: str | None = None) -> Any:
    """The array that `serialize_tensor` made bytes of.

    Raises:
        CorruptRecord: If the bytes are none.
        UsageError: If it has another type.
    """
    data = serialized.item() if hasattr(serialized, "item") else serialized
    wanted, number, shape, content, texts = as_dtype(out_type), 0, [], b"", []
    try:
        for field, value in _fields(data):
            if field == _TYPE:
                number = value
            elif field == _SHAPE:
                axes = [dict(_fields(axis)) for place, axis in _fields(value) if place == _AXIS]
                shape = [axis.get(_SIZE, 0) for axis in axes]
            elif field == _CONTENT:
                content = value
            elif field == _TEXT:
                texts.append(value)
        if number == _TYPES[wanted.name]:
            text = wanted.name == "string"
            flat = (
                np.empty(len(texts), object)
                if text
                else np.frombuffer(content, numpy_dtype(wanted))
            )
            if text:
                flat[:] = texts
            return hosted(flat.reshape(shape).copy())
    except (IndexError, TypeError, ValueError) as error:
        raise CorruptRecord(
            f"A tensor is read of what `serialize_tensor` wrote. Received: {len(data)} bytes of "
            f"which is said: {error}. They are damaged, cut off, or something else. Write them "
            "anew."
        ) from error
    held = next((name for name, one in _TYPES.items() if one == number), "unknown")
    raise UsageError(
        f"A tensor is read in the type that it has. Received: out_type={wanted.name} for one of "
        f"{held}. Its bytes would mean other numbers. Pass `tf.{held}`, and cast afterwards."
    )


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while place < len(data):
        key = varint()
        if key & 7 == _VARINT:
            yield key >> 3, varint()
            continue
        if key & 7 != _BYTES:
            raise ValueError("a field of another kind")
        size = varint()
        if place + size > len(data):
            raise ValueError("the end is missing")
        yield key >> 3, data[place : place + size]
        place += size

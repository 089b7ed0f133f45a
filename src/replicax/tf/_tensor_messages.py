"""Arrays as bytes: TensorFlow's message `TensorProto`, as its `serialize_tensor` writes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from replicax._core.errors import CorruptRecord, UsageError
from replicax._core.wire import TYPES, fields, message, number
from replicax.data._host import HostTensor
from replicax.tf._calls import array, hosted, numpy_dtype
from replicax.tf._dtypes import as_dtype

# The numbers of the message's fields.
_TYPE, _SHAPE, _CONTENT, _TEXT = 1, 2, 4, 8
_AXIS, _SIZE = 2, 1


def serialize_tensor(tensor: Any, name: str | None = None) -> HostTensor:
    """An array as bytes, which `parse_tensor` reads, TensorFlow's, too."""
    found = np.asarray(array(tensor)[1])
    text = found.dtype.kind in "OSU"
    kind = TYPES["string" if text else found.dtype.name]
    axes = b"".join(message(_AXIS, number(_SIZE, size)) for size in found.shape)
    parts = [number(_TYPE, kind), message(_SHAPE, axes)]
    if text:
        texts = found.ravel().tolist()
        parts += [message(_TEXT, one.encode() if isinstance(one, str) else one) for one in texts]
    else:
        parts.append(message(_CONTENT, np.ascontiguousarray(found).tobytes()))
    return HostTensor.of(b"".join(parts))


def parse_tensor(serialized: Any, out_type: Any, name: str | None = None) -> Any:
    """The array that `serialize_tensor` made bytes of.

    Raises:
        CorruptRecord: If the bytes are none.
        UsageError: If it has another type.
    """
    data = serialized.item() if hasattr(serialized, "item") else serialized
    wanted, kind, shape, content, texts = as_dtype(out_type), 0, [], b"", []
    try:
        for field, value in fields(data):
            if field == _TYPE:
                kind = value
            elif field == _SHAPE:
                axes = [dict(fields(axis)) for place, axis in fields(value) if place == _AXIS]
                shape = [axis.get(_SIZE, 0) for axis in axes]
            elif field == _CONTENT:
                content = value
            elif field == _TEXT:
                texts.append(value)
        if kind == TYPES[wanted.name]:
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
            f"Cannot parse these {len(data)} bytes as a tensor: {error}. Pass what "
            "`tf.io.serialize_tensor` wrote."
        ) from error
    held = next((name for name, one in TYPES.items() if one == kind), "unknown")
    raise UsageError(
        f"Cannot parse a tensor of {held} as out_type={wanted.name}. Pass `tf.{held}`, and cast "
        "afterwards."
    )

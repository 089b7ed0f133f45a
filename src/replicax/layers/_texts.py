"""Texts as NumPy arrays, tokens as ids, and ids as rows of numbers: what text layers compute with.

All of it is on the host: devices know no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax.data._host import HostTensor


def is_text(value: Any) -> bool:
    """Whether a value is text or bytes, or an array or list of them."""
    if isinstance(value, str | bytes):
        return True
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind or hasattr(value, "dtype"):
        return kind in ("O", "U", "S", "T")
    return isinstance(value, list | tuple) and bool(value) and is_text(value[0])


def as_texts(value: Any) -> np.ndarray:
    """An array of `str`, of text or bytes, or of a nest of lists of them."""
    array = np.asarray(value)
    if array.dtype.kind in "US":
        # From the beginning: NumPy cuts off zeros at the end of a text of fixed width.
        array = np.array(value, dtype=object)
    flat = [_as_str(one) for one in array.ravel().tolist()]
    result = np.empty(len(flat), dtype=object)
    result[:] = flat
    return result.reshape(array.shape)


def _as_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    return value.decode() if isinstance(value, bytes) else str(value)


def on_host(array: Any) -> HostTensor:
    """A result, with `numpy()`."""
    return np.asarray(array).view(HostTensor)


def one_hot(ids: np.ndarray, depth: int) -> np.ndarray:
    """A one at each id, none where it is negative; an axis of one is replaced."""
    if ids.ndim > 1 and ids.shape[-1] == 1:
        ids = ids[..., 0]
    return (ids[..., None] == np.arange(depth)).astype(keras.config.floatx())


def counted(ids: np.ndarray, rows: np.ndarray, shape: Sequence[int], depth: int) -> np.ndarray:
    """How often each id stands in each row.

    Args:
        ids: Of all rows, one after the other; what is negative does not count.
        rows: The row of each id.
        shape: Of the result, without the last axis.
        depth: How many ids there are.
    """
    kept = ids >= 0
    count = int(np.prod(shape, dtype=int))
    found = np.bincount(rows[kept] * depth + ids[kept], minlength=count * depth)
    return found.reshape(*shape, depth).astype(keras.config.floatx())


def padded(ids: np.ndarray, lengths: np.ndarray, length: int | None) -> np.ndarray:
    """Rows of different lengths in one array, filled up with zeros, or cut off.

    Args:
        ids: Of all rows, one after the other.
        lengths: How many each row has.
        length: Of the result; None for the longest row.
    """
    longest = int(lengths.max(initial=0))
    result = np.zeros((len(lengths), longest), np.int64)
    result[np.arange(longest) < lengths[:, None]] = ids
    if length is None:
        return result
    return np.pad(result[:, :length], ((0, 0), (0, max(length - longest, 0))))


def batches_of(data: Any, steps: int | None) -> Any:
    """What `adapt` reads: batches of a data set, or one array as one batch."""
    if isinstance(data, str | bytes | list | tuple) or hasattr(data, "dtype"):
        return [data]
    return data if steps is None else (batch for batch, _ in zip(data, range(steps), strict=False))


MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")
_OLDER = {"binary": "multi_hot", "tf-idf": "tf_idf"}


def check_mode(mode: str, sparse: bool, *, invert: bool = False) -> str:
    """The output mode under its name of today.

    Raises:
        UsageError: If there is none of this name, or it cannot be made.
    """
    known = _OLDER.get(mode, mode)
    if known not in MODES or sparse or (invert and known != "int"):
        raise UsageError(
            f"An output mode is one of {', '.join(MODES)}; of `invert` it is 'int'. Received: "
            f"output_mode={mode!r}, invert={invert}, sparse={sparse}. JAX has no sparse arrays "
            "that layers take. Use one of these, and leave `sparse` out."
        )
    return known

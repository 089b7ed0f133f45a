"""Arrays as text, as TensorFlow prints them: the ends of each axis, numbers in short form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def ends(array: Any, count: int) -> Any:
    """The first and last `count` entries of every axis that has more; all, if it is negative.

    Args:
        array: An array of NumPy or JAX; also a traced one.
        count: How many of each end.
    """
    if count < 0:
        return array
    for axis, size in enumerate(array.shape):
        if size > 2 * count:
            kept = [*range(count), *range(size - count, size)]
            array = array.take(np.array(kept, np.int32), axis=axis)
    return array


def array_text(array: np.ndarray, shape: Sequence[int], count: int) -> str:
    """The text of an array.

    Args:
        array: What `ends` left of it.
        shape: What it was before.
        count: How many entries of each end are shown.
    """
    return _rows(array, tuple(shape), count, 1)


def _rows(array: Any, shape: tuple[int, ...], count: int, depth: int) -> str:
    if not shape:
        return _entry(array[()] if isinstance(array, np.ndarray) else array)
    inner = [_rows(row, shape[1:], count, depth + 1) for row in array]
    if 0 <= 2 * count < shape[0]:
        inner.insert(count, "...")
    between = " " if len(shape) == 1 else "\n" * (len(shape) - 1) + " " * depth
    return f"[{between.join(inner)}]"


def _entry(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, bytes):
        return f'"{value.decode(errors="replace")}"'
    if isinstance(value, str):
        return f'"{value}"'
    if np.issubdtype(type(value), np.complexfloating):
        return f"({_number(value.real)},{_number(value.imag)})"
    return str(value) if isinstance(value, np.integer) else _number(value)


def _number(value: Any) -> str:
    # As short as gives the number back; else all digits that count.
    digits = 15 if getattr(value, "dtype", None) == np.float64 else 6
    short = f"{float(value):.{digits}g}"
    same = type(value)(float(short)) == value or value != value
    return short if same else f"{float(value):.{digits + (2 if digits == 15 else 3)}g}"


def nest_text(value: Any, leaf: Any, *, inside: bool = False) -> str:
    """A nest as text; `leaf` gives that of what is no list, tuple, mapping or string.

    Of a sparse or ragged tensor it shows the arrays, and what else it is made of.
    """
    if isinstance(value, str) and inside:
        return repr(value)
    if isinstance(value, Mapping):
        pairs = (f"{key!r}: {nest_text(item, leaf, inside=True)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        items = [nest_text(item, leaf, inside=True) for item in value]
        if isinstance(value, list):
            return f"[{', '.join(items)}]"
        names = getattr(value, "_fields", None)
        if names:
            pairs = (f"{name}={item}" for name, item in zip(names, items, strict=True))
            return f"{type(value).__name__}({', '.join(pairs)})"
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    flatten = getattr(value, "tree_flatten", None)
    if flatten is not None:
        arrays, rest = flatten()
        items = [nest_text(item, leaf, inside=True) for item in (*arrays, rest)]
        return f"{type(value).__name__}({', '.join(items)})"
    return leaf(value)

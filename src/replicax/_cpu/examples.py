"""Batches of serialized examples, read column by column by the kernels of `src/examples.c`."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from replicax._cpu.kernels import function

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_KINDS = {"bytes": 1, "float32": 2, "int64": 3}
_PLACE = 3  # numbers that say where a list is, the first of them its kind


class Column(NamedTuple):
    """The values of a feature, one record after the other.

    Args:
        values: Of all records.
        counts: How many values each record has.
        present: Which records have the feature.
    """

    values: np.ndarray
    counts: np.ndarray
    present: np.ndarray


def columns_of(records: Sequence[bytes], kinds: Mapping[str, str]) -> dict[str, Column] | None:
    """Features of a batch of examples.

    Args:
        records: The serialized examples.
        kinds: "bytes", "float32" or "int64" for the name of each feature.

    Returns:
        A column for each name; None if there is no kernel, or if a record is no example, has
        values of another kind, or is laid out in an unusual way.
    """
    find = function("rx_find_features", *[_POINTER] * 2, _INT, *[_POINTER] * 2, _INT, _POINTER)
    if find is None or not all(type(record) is bytes for record in records):
        return None
    pointers = (ctypes.c_char_p * len(records))(*records)
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    names = [name.encode() for name in kinds]
    ends = np.cumsum([*map(len, names)], dtype=np.int64)
    places = np.empty((len(records), len(names), _PLACE), np.int64)
    text = b"".join(names)
    if find(
        ctypes.addressof(pointers),
        sizes.ctypes.data,
        len(records),
        text,
        ends.ctypes.data,
        len(names),
        places.ctypes.data,
    ):
        return None
    found = {}
    for number, (name, kind) in enumerate(kinds.items()):
        column = _column(records, pointers, places[:, number], kind)
        if column is None:
            return None
        found[name] = column
    return found


def _column(
    records: Sequence[bytes], pointers: Any, places: np.ndarray, kind: str
) -> Column | None:
    present = places[:, 0] != 0
    if (places[present, 0] != _KINDS[kind]).any():
        return None
    counts = np.empty(len(records), np.int64)
    read = function("rx_feature_values", _POINTER, _INT, _POINTER, _INT, *[_POINTER] * 2)
    start, features = places.ctypes.data, places.strides[0] // (_PLACE * places.itemsize)
    where = ctypes.addressof(pointers), len(records), start, features, counts.ctypes.data
    if read(*where, None):
        return None
    is_text = kind == "bytes"
    total = int(counts.sum())
    flat = np.empty((total, 2) if is_text else total, np.int64 if is_text else kind)
    read(*where, flat.ctypes.data)
    if not is_text:
        return Column(flat, counts, present)
    owners = itertools.chain.from_iterable(map(itertools.repeat, records, counts.tolist()))
    texts = np.empty(len(flat), object)
    texts[:] = [owner[a:b] for owner, (a, b) in zip(owners, flat.tolist(), strict=True)]
    return Column(texts, counts, present)

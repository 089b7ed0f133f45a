"""Batches of serialized examples, read column by column by the kernels of `src/examples.c`."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from replicax._cpu.kernels import function

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_KINDS = {"bytes": 1, "float32": 2, "int64": 3}
_PLACE = 4  # numbers for each list: its kind, position, size in bytes, and number of values


class Column(NamedTuple):
    """The values of a feature, one record after the other."""

    values: np.ndarray  # of all records
    counts: np.ndarray  # the number of values of each record
    present: np.ndarray  # whether each record has the feature


def columns_of(records: Sequence[bytes], kinds: Mapping[str, str]) -> dict[str, Column] | None:
    """Features of a batch of serialized examples, of the kinds "bytes", "float32" or "int64".

    None if there is no kernel, if a record is not an example, or has values of another kind or an
    unusual layout: the caller then parses the records in Python.
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
    present, counts = places[:, :, 0] != 0, places[:, :, 3]
    wanted = np.array([_KINDS[kind] for kind in kinds.values()])
    if (places[:, :, 0] != wanted * present).any():
        return None
    read = function("rx_feature_values", _POINTER, _INT, _POINTER, _INT, _POINTER)
    start, step = places.ctypes.data, _PLACE * places.itemsize
    totals = counts.sum(axis=0).tolist()
    found = {}
    for at, ((name, kind), total) in enumerate(zip(kinds.items(), totals, strict=True)):
        is_text = kind == "bytes"
        made = np.empty((total, 2), np.int64) if is_text else np.empty(total, kind)
        pointer = start + at * step
        read(ctypes.addressof(pointers), len(records), pointer, len(names), made.ctypes.data)
        made = _texts(records, made, counts[:, at]) if is_text else made
        found[name] = Column(made, counts[:, at], present[:, at])
    return found


def _texts(records: Sequence[bytes], spans: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Cut the byte strings at `spans` (start, end) out of the records; each has `counts` spans."""
    owners = itertools.chain.from_iterable(map(itertools.repeat, records, counts.tolist()))
    texts = np.empty(len(spans), object)
    texts[:] = [owner[a:b] for owner, (a, b) in zip(owners, spans.tolist(), strict=True)]
    return texts

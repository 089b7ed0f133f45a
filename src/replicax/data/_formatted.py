"""Rows of Hugging Face `datasets` as arrays, with their owner's transform, columns and types.

By protocol, not by class: the library is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax.data._element import as_element

# Formats of arrays or of the owner's own transform; the others give lists, data
# frames and Arrow tables.
_KEPT = ("custom", "jax", "numpy", "tensorflow", "torch")


def has_formats(source: Any) -> bool:
    """Whether a data set lets its owner choose a format, as Hugging Face's do."""
    return callable(getattr(source, "with_format", None))


def formatted_rows(source: Any, numbers: Sequence[int]) -> dict[str, Any]:
    """The columns of the rows with these numbers, read at once."""
    rows = dict(_with_arrays(source)[list(numbers)])
    doubles = _doubles(source)
    if doubles is not None:
        rows.update(doubles[list(numbers)])
    return _typed(source, rows)


def formatted_iterator(source: Any) -> Iterator[dict[str, Any]]:
    """The rows of a data set or stream, one by one."""
    doubles = _doubles(source)
    if doubles is None:
        return (_typed(source, dict(row)) for row in _with_arrays(source))
    pairs = zip(_with_arrays(source), doubles, strict=True)
    return (_typed(source, {**row, **double}) for row, double in pairs)


def _with_arrays(source: Any) -> Any:
    if not _is_ours_to_choose(source):
        return source
    columns = _columns(source)
    return source.with_format("numpy", **({} if columns is None else {"columns": columns}))


def _is_ours_to_choose(source: Any) -> bool:
    chosen = _format(source)
    # A stream tells its format nowhere else.
    of_stream = getattr(source, "_formatting", None)
    kind = chosen["type"] if chosen else getattr(of_stream, "format_type", None)
    return kind not in _KEPT


def _format(source: Any) -> Mapping[str, Any] | None:
    """The format of a table; None of a stream."""
    chosen = getattr(source, "format", None)
    return chosen if isinstance(chosen, Mapping) else None


def _columns(source: Any) -> list[str] | None:
    """The columns to read; None for all."""
    chosen = _format(source)
    if chosen is None or chosen["output_all_columns"]:
        return None
    return list(chosen["columns"])


def _types(source: Any) -> dict[str, np.dtype]:
    """The types of numeric columns, from the features."""
    features = getattr(source, "features", None)
    if not isinstance(features, Mapping) or not _is_ours_to_choose(source):
        return {}
    types = {}
    for name, feature in features.items():
        while hasattr(feature, "feature"):  # a list of these
            feature = feature.feature
        kind = getattr(feature, "dtype", None)
        if isinstance(kind, str) and kind.startswith(("int", "uint", "float")):
            types[name] = np.dtype(kind)
    if _format(source) is None:  # a stream turns float64 into float32
        types = {name: kind for name, kind in types.items() if kind != np.float64}
    return types


def _doubles(source: Any) -> Any:
    """The columns of float64, which the NumPy format gives as float32; None if there are none."""
    chosen = _format(source)
    if chosen is None:  # the format of a stream takes no type
        return None
    wanted = _types(source) if chosen["output_all_columns"] else chosen["columns"]
    doubles = {name for name, kind in _types(source).items() if kind == np.float64}
    names = [name for name in wanted if name in doubles]
    return source.with_format("numpy", columns=names, dtype=np.float64) if names else None


def _typed(source: Any, rows: dict[str, Any]) -> dict[str, Any]:
    """Values as arrays; numbers get the features' types, because NumPy's format widens them."""
    types = _types(source)
    arrays = {name: as_element(value) for name, value in rows.items()}
    return {name: _as_type(name, array, types.get(name)) for name, array in arrays.items()}


def _as_type(name: str, array: Any, kind: np.dtype | None) -> Any:
    is_number = getattr(getattr(array, "dtype", None), "kind", None) in ("i", "u", "f")
    if not is_number or kind is None:
        return array
    if kind.kind in "iu" and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UsageError(
            f"Column {name!r} of integers is null in some rows. Fill them with `map`, drop those "
            "rows with `filter`, or leave the column out with `select_columns`."
        )
    return array.astype(kind, copy=False)

"""What depends on the order of elements: `sort`, `argsort`, `searchsorted`, `unique`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from replicax._core.errors import UsageError
from replicax.tf._calls import array, array_function, arrays, concrete, numpy_dtype
from replicax.tf._dtypes import int32

__all__ = ["argsort", "searchsorted", "sort", "unique", "unique_with_counts"]


@array_function
def sort(values: Any, axis: Any = -1, direction: str = "ASCENDING", name: str | None = None) -> Any:
    """The elements in order along an axis."""
    xp, x = array(values)
    found = xp.sort(x, axis=int(axis))
    return xp.flip(found, int(axis)) if _is_descending(direction) else found


@array_function
def argsort(
    values: Any,
    axis: Any = -1,
    direction: str = "ASCENDING",
    stable: bool = False,
    name: str | None = None,
) -> Any:
    """The places of the elements in order along an axis; equal ones stay in their order."""
    xp, x = array(values)
    axis = int(axis)
    if not _is_descending(direction):
        return xp.argsort(x, axis=axis, stable=True).astype(np.int32)
    # Backwards twice, so that equal elements stay in their order.
    backwards = xp.argsort(xp.flip(x, axis), axis=axis, stable=True)
    return (x.shape[axis] - 1 - xp.flip(backwards, axis)).astype(np.int32)


def _is_descending(direction: str) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise UsageError(
            f'A direction is "ASCENDING" or "DESCENDING". Received: {direction!r}. It says what '
            "comes first. Choose one of the two."
        )
    return direction == "DESCENDING"


@array_function
def searchsorted(
    sorted_sequence: Any,
    values: Any,
    side: str = "left",
    out_type: Any = int32,
    name: str | None = None,
) -> Any:
    """Where each value would stand in its sorted row."""
    xp, (rows, values) = arrays(sorted_sequence, values)
    if rows.ndim == 1:
        return xp.searchsorted(rows, values, side=side).astype(numpy_dtype(out_type, xp))
    flat = (x.reshape(-1, x.shape[-1]) for x in (rows, values))
    found = [xp.searchsorted(row, sought, side=side) for row, sought in zip(*flat, strict=True)]
    return xp.stack(found).reshape(values.shape).astype(numpy_dtype(out_type, xp))


class Unique(NamedTuple):
    """The different elements, and which of them each element is."""

    y: Any
    idx: Any


class UniqueWithCounts(NamedTuple):
    """The different elements, which of them each element is, and how many are the same."""

    y: Any
    idx: Any
    count: Any


@array_function
def unique(x: Any, out_idx: Any = int32, name: str | None = None) -> Unique:
    """The different elements in the order of their first place; outside compiled code."""
    return Unique(*unique_with_counts(x, out_idx)[:2])


@array_function
def unique_with_counts(x: Any, out_idx: Any = int32, name: str | None = None) -> UniqueWithCounts:
    """The different elements in the order of their first place, and how many there are of each."""
    values = concrete(x, "unique")
    _, firsts, where_, counts = np.unique(
        values, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(firsts)
    index = np.argsort(order)[where_.reshape(-1)]
    kind = numpy_dtype(out_idx)
    found = UniqueWithCounts(values[firsts[order]], index.astype(kind), counts[order].astype(kind))
    return found if array(x)[0] is np else UniqueWithCounts(*map(jnp.asarray, found))

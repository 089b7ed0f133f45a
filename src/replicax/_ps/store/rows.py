"""The rows of each shard that an index or a list of ids touches, and their assembly.

Pure NumPy. `offsets` are always those of `partition.shard_offsets`: the first row of each shard,
followed by the number of all rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replicax._core.errors import IndexOutOfBounds, UnsupportedIndex

# For an empty result: one empty part, which gives it the right type.
_NOTHING = ((0, slice(0, 0)),)


@dataclass(frozen=True)
class IndexPlan:
    """What to read of each shard for one index, and how to make the result of it.

    Parts are (shard, its local rows) in the order in which `assemble` wants them; never empty.
    `rest` is the remaining index once the parts are concatenated.
    """

    parts: tuple[tuple[int, slice | np.ndarray], ...]
    rest: Any

    def assemble(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The result of `variable[index]`, from the shards' answers part by part."""
        whole = np.concatenate(arrays) if len(arrays) > 1 else np.asarray(arrays[0])
        return whole[self.rest]


def plan_index(shape: Sequence[int], offsets: Sequence[int], index: Any) -> IndexPlan:
    """Plan the reading of `variable[index]`, so that only the rows that it names are read.

    Integers, slices, `...`, `None`, and masks of Booleans for the first axes count as in NumPy. An
    array or list of integers, or anything else, raises
    UnsupportedIndex; an index outside raises IndexOutOfBounds.

    Example:
        >>> plan = plan_index((8, 2), (0, 3, 6, 8), slice(2, 7, 2))
        >>> plan.parts
        ((0, slice(2, 4, 2)), (1, slice(1, 3, 2)), (2, slice(0, 2, 2)))
    """
    if _is_array(index):
        return _plan_mask(shape, offsets, index)
    entries = _expanded(index, len(shape))
    axes = [number for number, entry in enumerate(entries) if entry is not None]
    for axis, number in enumerate(axes):
        entries[number] = _checked(entries[number], axis, shape[axis])
    first = entries[axes[0]]
    if isinstance(first, int):
        shard = int(np.searchsorted(offsets[1:-1], first, side="right"))
        local = first - offsets[shard]
        entries[axes[0]] = 0
        return IndexPlan(((shard, slice(local, local + 1)),), tuple(entries))
    entries[axes[0]] = slice(None)
    rows = range(*first.indices(shape[0]))
    return IndexPlan(_parts(rows, offsets) or _NOTHING, tuple(entries))


def rows_by_shard(
    offsets: Sequence[int], ids: np.ndarray
) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Sort ids, in any order and with repeats, by the shard that has them.

    For each shard that is touched: its number, the local rows in the order of `ids`, and where in
    `ids` they stand.

    Example:
        >>> [(s, list(map(int, rows)), list(map(int, at)))
        ...  for s, rows, at in rows_by_shard((0, 2, 4, 5), np.array([4, 0, 3, 4]))]
        [(0, [0], [1]), (1, [1], [2]), (2, [0, 0], [0, 3])]
    """
    ids = np.asarray(ids).reshape(-1)
    if len(ids) and (ids.min() < 0 or ids.max() >= offsets[-1]):
        wrong = ids[(ids < 0) | (ids >= offsets[-1])]
        raise IndexOutOfBounds(
            f"Id {wrong[0]} is out of bounds, as one of {len(wrong)}: ids must be from 0 to "
            f"{offsets[-1] - 1}. Check the data, or give the variable as many rows as the "
            "vocabulary."
        )
    return sort_by_owner(
        np.searchsorted(offsets[1:-1], ids, side="right"),
        len(offsets) - 1,
        lambda owner, positions: ids[positions] - offsets[owner],
    )


def sort_by_owner(
    owners: np.ndarray, count: int, select: Callable[[int, np.ndarray], np.ndarray]
) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Group positions by the owner of what is there, keeping their order.

    Returns (owner, the result of `select` for it and its positions, positions) for each of `count`
    owners that has any.
    """
    # 16-bit numbers are sorted by radix sort, ten times as fast as 64-bit ones.
    owners = owners.astype(np.uint16 if count <= 1 << 16 else np.int64)
    order = np.argsort(owners, kind="stable")
    borders = np.cumsum(np.bincount(owners, minlength=count))
    groups = zip(range(count), np.split(order, borders[:-1]), strict=True)
    return [(owner, select(owner, at), at) for owner, at in groups if len(at)]


def _is_array(index: Any) -> bool:
    return isinstance(index, list) or getattr(index, "ndim", 0) > 0


def _plan_mask(shape: Sequence[int], offsets: Sequence[int], index: Any) -> IndexPlan:
    """Plan to read the rows in which a mask chooses anything."""
    mask = np.asarray(index)
    if mask.dtype != bool:
        raise _not_allowed(index)
    if mask.shape != tuple(shape[: mask.ndim]):
        raise IndexOutOfBounds(
            f"A mask of shape {mask.shape} does not fit a variable of shape {tuple(shape)}. Give "
            "it the shape of the variable, or of its first axes."
        )
    rows = np.flatnonzero(mask.any(axis=tuple(range(1, mask.ndim))))
    parts = tuple((shard, local) for shard, local, _ in rows_by_shard(offsets, rows))
    return IndexPlan(parts or _NOTHING, mask[rows])


def _expanded(index: Any, rank: int) -> list[Any]:
    """An index with one entry per axis, besides `None` for new ones."""
    entries = list(index) if isinstance(index, tuple) else [index]
    given = sum(entry is not None and entry is not Ellipsis for entry in entries)
    ellipses = [number for number, entry in enumerate(entries) if entry is Ellipsis]
    if given > rank or len(ellipses) > 1:
        raise IndexOutOfBounds(
            f"Too many entries in the index: {given} and {len(ellipses)} `...` for a variable with "
            f"{rank} axes. Use at most one entry for each axis and one `...`."
        )
    where = ellipses[0] if ellipses else len(entries)
    return [*entries[:where], *[slice(None)] * (rank - given), *entries[where + 1 :]]


def _checked(entry: Any, axis: int, size: int) -> int | slice:
    """One entry of an index as a slice, or as an integer that is not negative."""
    if isinstance(entry, slice):
        return entry
    if isinstance(entry, bool | np.bool_) or _is_array(entry):
        raise _not_allowed(entry)
    try:
        number = operator.index(entry)
    except TypeError as error:  # also for a tracer, whose value is unknown
        raise _not_allowed(entry) from error
    if not -size <= number < size:
        raise IndexOutOfBounds(
            f"Index {number} is out of bounds for axis {axis} with size {size}. Use one from "
            f"{-size} to {size - 1}."
        )
    return number % size


def _not_allowed(entry: Any) -> UnsupportedIndex:
    shape = getattr(entry, "shape", None)
    entry = f"an array of shape {shape}" if shape is not None else repr(entry)
    return UnsupportedIndex(
        f"Indexing a sharded variable by {entry} is not allowed. Use integers, slices, `...`, "
        "`None` or one Boolean mask. For rows by number use `rx.nn.embedding_lookup(variable, "
        "ids)`."
    )


def _parts(rows: range, offsets: Sequence[int]) -> tuple[tuple[int, slice], ...]:
    """The local slice of each shard that `rows` touch, in the order of `rows`."""
    upward = rows if rows.step > 0 else rows[::-1]
    parts = []
    for shard, (low, high) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        within = upward[_steps(upward, low) : _steps(upward, high)]
        if within:
            local = within if rows.step > 0 else within[::-1]
            stop = local.stop - low
            parts.append((shard, slice(local.start - low, stop if stop >= 0 else None, local.step)))
    return tuple(parts if rows.step > 0 else parts[::-1])


def _steps(upward: range, border: int) -> int:
    """The number of members of a range below a border."""
    return max(0, -(-(border - upward.start) // upward.step))

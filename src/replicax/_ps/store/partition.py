"""The shards that a variable is cut into, the rows of each, and what an index reads of them.

Arithmetic and NumPy only. The partitioners are published as `replicax.experimental.partitioners`.
`offsets` are the first row of each shard, followed by the number of all rows.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any, final

import numpy as np

from replicax._core.errors import IndexOutOfBounds, UnsupportedIndex, UsageError, checks_types


def shard_rows(rows: int, shards: int) -> tuple[int, ...]:
    """Rows of each shard; the first `rows mod shards` of them have one more.

    Example:
        >>> shard_rows(13, 4), shard_rows(13, 5)
        ((4, 3, 3, 3), (3, 3, 3, 2, 2))
    """
    few, more = divmod(rows, shards)
    return tuple(few + (shard < more) for shard in range(shards))


def num_shards(partitioner: Callable[..., Any] | None, shape: Sequence[int], dtype: Any) -> int:
    """Ask a partitioner how many shards a variable gets: from 1, not sharded, to its rows.

    Without a partitioner it is 1. Only whole rows are sharded.

    Example:
        >>> num_shards(FixedShardsPartitioner(4), (3, 2), "float32")
        3
    """
    if partitioner is None or not shape:
        return 1  # a scalar has no rows, so no partitioner is asked
    answer = partitioner(tuple(shape), dtype)
    if not _is_rows_only(answer):
        raise UsageError(
            "variable_partitioner must return a list/tuple whose elements are 1 besides the first "
            f"element (non-zero), got {answer!r} for the shape {tuple(shape)}. Return "
            f"{[2] + [1] * (len(shape) - 1)} for two shards."
        )
    return max(1, min(int(answer[0]), shape[0]))


class Partitioner(ABC):
    """Says into how many shards a variable is cut along an axis; derive from it to write another.

    Example:
        >>> class Halves(Partitioner):
        ...     def __call__(self, shape, dtype, axis=0):
        ...         return [2 if number == axis else 1 for number in range(len(shape))]
        >>> Halves()((6, 3), "float32")
        [2, 1]
    """

    @abstractmethod
    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Say how many shards there are along each axis.

        Args:
            shape: The shape of the whole variable.
            dtype: The type of its elements.
            axis: The axis to cut.

        Returns:
            One number per axis, 1 for all but `axis`.
        """


@final
@checks_types
class FixedShardsPartitioner(Partitioner):
    """Cuts every variable into the same number of shards, but none into more than it has rows.

    Args:
        num_shards: How many.

    Example:
        >>> FixedShardsPartitioner(2)((10, 3), "float32")
        [2, 1]
    """

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Say how many shards there are along each axis, as in `Partitioner`."""
        _check_axis(shape, axis)
        return _along(axis, min(self._num_shards, shape[axis]), shape)


@final
@checks_types
class MinSizePartitioner(Partitioner):
    """Cuts a variable into as many shards of a least size as possible, up to a largest number.

    As in TensorFlow, shards may fall below the least size, because their number is rounded up.

    Args:
        min_shard_bytes: The least size of a shard.
        max_shards: How many shards there are at most.
        bytes_per_string: What an element of text counts for.

    Raises:
        UsageError: If one of them is not positive.

    Example:
        >>> MinSizePartitioner(256 << 10, max_shards=16)((1024, 1024), "float32")
        [16, 1]
    """

    def __init__(
        self,
        min_shard_bytes: int = 256 << 10,
        max_shards: int = 1,
        bytes_per_string: int = 16,
    ) -> None:
        _check_positive(min_shard_bytes=min_shard_bytes)
        _check_positive(max_shards=max_shards)
        _check_positive(bytes_per_string=bytes_per_string)
        self._min_shard_bytes = min_shard_bytes
        self._max_shards = max_shards
        self._bytes_per_string = bytes_per_string

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Say how many shards there are along each axis, as in `Partitioner`."""
        _check_axis(shape, axis)
        total = prod(shape) * _element_bytes(dtype, self._bytes_per_string)
        shards = min(shape[axis], self._max_shards, ceil(total / self._min_shard_bytes))
        return _along(axis, max(1, shards), shape)


@final
@checks_types
class MaxSizePartitioner(Partitioner):
    """Cuts a variable into shards below a size, or of one row where a single one is larger.

    Args:
        max_shard_bytes: The largest size of a shard.
        max_shards: How many shards there are at most, whatever their size. None or 0 for any
            number.
        bytes_per_string: What an element of text counts for.

    Raises:
        UsageError: If one of them is not positive.

    Example:
        >>> MaxSizePartitioner(100)((10, 10), "float32")
        [5, 1]
    """

    def __init__(
        self,
        max_shard_bytes: int,
        max_shards: int | None = None,
        bytes_per_string: int = 16,
    ) -> None:
        _check_positive(max_shard_bytes=max_shard_bytes)
        _check_positive(max_shards=max_shards or 1)
        _check_positive(bytes_per_string=bytes_per_string)
        self._max_shard_bytes = max_shard_bytes
        self._max_shards = max_shards
        self._bytes_per_string = bytes_per_string

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Say how many shards there are along each axis, as in `Partitioner`."""
        _check_axis(shape, axis)
        row_bytes = prod([*shape[:axis], *shape[axis + 1 :]])
        row_bytes *= _element_bytes(dtype, self._bytes_per_string)
        rows_per_shard = max(1, self._max_shard_bytes // max(row_bytes, 1))
        shards = ceil(shape[axis] / rows_per_shard)
        if self._max_shards:
            shards = min(shards, self._max_shards)
        return _along(axis, max(1, shards), shape)


def _is_rows_only(answer: Any) -> bool:
    """Whether a partitioner answered [n, 1, 1, …] with a positive n."""
    if not isinstance(answer, list | tuple) or not answer:
        return False
    counts = [isinstance(count, int | np.integer) for count in answer]
    return all(counts) and answer[0] > 0 and all(count == 1 for count in answer[1:])


def _along(axis: int, shards: int, shape: Sequence[int]) -> list[int]:
    return [shards if number == axis else 1 for number in range(len(shape))]


def _check_axis(shape: Sequence[int], axis: int) -> None:
    if axis >= len(shape):
        raise UsageError(
            f"Cannot partition variable along axis {axis} when shape is only {tuple(shape)}. Use "
            f"an axis below {len(shape)}."
        )


def _check_positive(**argument: int) -> None:
    ((name, value),) = argument.items()
    if value < 1:
        raise UsageError.of(name, "at least 1", value)


def _element_bytes(dtype: Any, bytes_per_string: int) -> int:
    """The bytes of one element, even of types that NumPy knows only after JAX's import."""
    name = getattr(dtype, "name", dtype)
    if name in ("bfloat16", "string"):
        return 2 if name == "bfloat16" else bytes_per_string
    kind = np.dtype(dtype)
    return bytes_per_string if kind.kind in "OSUT" else kind.itemsize


def rows_of_index(shape: Sequence[int], index: Any) -> tuple[np.ndarray, Any]:
    """The rows that `variable[index]` reads, and the index of the result within these rows.

    Integers, slices, `...`, `None`, and masks of Booleans for the first axes count as in NumPy. An
    array or list of integers, or anything else, raises
    UnsupportedIndex; an index outside raises IndexOutOfBounds.

    Example:
        >>> rows, rest = rows_of_index((8, 2), (slice(2, 7, 2), 1))
        >>> rows.tolist(), rest
        ([2, 4, 6], (slice(None, None, None), 1))
    """
    if _is_array(index):
        mask = _checked_mask(shape, index)
        rows = np.flatnonzero(mask.any(axis=tuple(range(1, mask.ndim))))
        return rows, mask[rows]
    entries = _expanded(index, len(shape))
    axes = [number for number, entry in enumerate(entries) if entry is not None]
    for axis, number in enumerate(axes):
        entries[number] = _checked(entries[number], axis, shape[axis])
    first = entries[axes[0]]
    entries[axes[0]] = 0 if isinstance(first, int) else slice(None)
    if isinstance(first, int):
        return np.array([first % shape[0]]), tuple(entries)
    return np.arange(*first.indices(shape[0])), tuple(entries)


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
            f"Id {wrong[0]} is out of bounds, one of {len(wrong)} such ids: ids must be from 0 to "
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


def _checked_mask(shape: Sequence[int], index: Any) -> np.ndarray:
    mask = np.asarray(index)
    if mask.dtype != bool:
        raise _not_allowed(index)
    if mask.shape != tuple(shape[: mask.ndim]):
        raise IndexOutOfBounds(
            f"A mask of shape {mask.shape} does not fit a variable of shape {tuple(shape)}. Give "
            "it the shape of the variable, or of its first axes."
        )
    return mask


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

"""The number of shards that a variable is cut into, and the rows of each: arithmetic only.

The partitioners are published as `replicax.experimental.partitioners`. `rows.py` says which rows of
which shard an index touches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import ceil, prod
from typing import Any, final

import numpy as np

from replicax._core.errors import UsageError


def shard_rows(rows: int, shards: int) -> tuple[int, ...]:
    """Rows of each shard; the first `rows mod shards` of them have one more.

    Example:
        >>> shard_rows(13, 4), shard_rows(13, 5)
        ((4, 3, 3, 3), (3, 3, 3, 2, 2))
    """
    few, more = divmod(rows, shards)
    return tuple(few + (shard < more) for shard in range(shards))


def shard_offsets(counts: Sequence[int]) -> tuple[int, ...]:
    """The first row of each shard, followed by the number of all rows.

    Example:
        >>> shard_offsets(shard_rows(10, 4))
        (0, 3, 6, 8, 10)
    """
    return tuple(accumulate(counts, initial=0))


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
class MinSizePartitioner(Partitioner):
    """Cuts a variable into as many shards as it has times a least size, up to a number of them.

    As in TensorFlow the last shards may fall below the least size, because their number is rounded
    up.

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

"""Batches of arrays that all workers have, of which each fetches the rows of its own replicas.

Which rows a batch will have is known before they are fetched. So workers compare several batches
at once, and who reads ahead of a step has copied nothing yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax
import numpy as np

from replicax._control import current
from replicax._control.agreement import Agreement
from replicax._core.placement import aligned
from replicax._core.program import checksum
from replicax._core.timing import COPY, timed
from replicax._keras import _compat
from replicax._keras.agreed_batches import SAME_BATCHES, agreed

# So many batches are compared at once.
_TOGETHER = 8


@final
class Rows:
    """Rows of an array in memory, to be fetched in parts.

    Args:
        array: The array.
        numbers: Theirs, a slice or an array.
    """

    def __init__(self, array: np.ndarray, numbers: Any) -> None:
        is_range = isinstance(numbers, slice)
        self._array = array
        self._numbers = range(numbers.start, numbers.stop) if is_range else numbers
        self.shape = (len(self._numbers), *array.shape[1:])
        self.dtype = array.dtype

    def part(self, index: Any = (slice(None),)) -> np.ndarray:
        """Some of the rows, in memory of their own that the devices of a CPU take over."""
        numbers, array = self._numbers[index[0]], self._array
        rows = aligned((len(numbers), *self.shape[1:]), self.dtype)
        if isinstance(numbers, range):
            np.copyto(rows, array[numbers.start : numbers.stop])
        elif array.flags.c_contiguous:  # of another one `take` copies everything
            array.take(numbers, axis=0, out=rows, mode="clip")
        else:
            rows[...] = array[numbers]
        return rows

    def ends(self) -> list[np.ndarray]:
        """The first row and the last one."""
        ends = self._numbers[0], self._numbers[-1]
        return [self._array[number : number + 1] for number in ends]


def placed_arrays(adapter: Any, distribution: Any) -> Iterator[Any] | None:
    """The batches of Keras' adapter on the devices, each once all workers are known to have it.

    Args:
        adapter: Keras' adapter, which reads arrays.
        distribution: Says where batches go.

    Returns:
        None if some are not dense, or if Keras draws random numbers for each batch.
    """
    batches = _compat.unfetched_batches(adapter, Rows)
    if batches is None:
        return None
    return _noted(agreed(_placed(batches, distribution), ahead=1), adapter.num_batches)


def _noted(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Lets the others know when each batch is wanted; comparisons are too few for that."""
    arrivals = current().arrivals.of_a_pass()
    for number in itertools.count(1):
        arrivals.note()
        if number == count:
            arrivals.end()  # before the last step is computed: an epoch may end with it
        batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _placed(batches: Iterator[Any], distribution: Any) -> Iterator[tuple[Any, Agreement | None]]:
    """Each on the devices, the first of those that are compared together with the comparison."""
    layout, split = distribution.get_data_layout, distribution.topology.split

    def put(rows: Rows) -> Any:
        return jax.make_array_from_callback(rows.shape, layout(rows.shape), rows.part)

    def is_whole(shape: tuple[int, ...]) -> bool:
        return layout(shape) is not split

    number = 0
    for group, whole in _groups(batches, is_whole):
        comparison: Agreement | None = _comparison(group, number, whole=whole)
        for batch in group:
            yield timed(COPY, jax.tree.map, put, batch), comparison
            comparison = None
        number += len(group)


def _groups(
    batches: Iterator[Any], is_whole: Callable[[tuple[int, ...]], bool]
) -> Iterator[tuple[Sequence[Any], bool]]:
    """Batches of the same shapes, to be compared together, and whether all of their rows are to be.

    The first one is by itself, and so is each that every device gets the whole of.
    """
    compared = 1
    for shapes, alike in itertools.groupby(batches, _shapes):
        whole = any(map(is_whole, shapes))
        while group := list(itertools.islice(alike, 1 if whole else compared)):
            yield group, whole or compared == 1
            compared = _TOGETHER


def _shapes(batch: Any) -> list[tuple[int, ...]]:
    return [rows.shape for rows in jax.tree.leaves(batch)]


def _comparison(group: Sequence[Any], number: int, *, whole: bool) -> Agreement:
    """Begin to compare batches with those of all workers: their first and last rows, or all.

    Args:
        group: The batches.
        number: Which of this pass the first is.
        whole: Whether to compare all rows of the only batch.
    """
    leaves = jax.tree.leaves(group[0])
    kinds = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
    if whole:
        found = checksum([leaf.part() for leaf in leaves])
    else:
        parts = [leaf for batch in group for leaf in jax.tree.leaves(batch)]
        found = checksum([end for rows in parts for end in rows.ends()])
    name = f"batches of this pass, from {number} on"
    facts = {name: f"{len(group)} of {kinds}, checksum {found}"}
    return Agreement("batches", facts, fix=SAME_BATCHES, is_timed=False)

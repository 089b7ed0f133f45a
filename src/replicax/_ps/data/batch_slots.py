"""What stands for a per-worker iterator while a function of it is traced, and in its program."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, final

import jax

from replicax._ps.data.per_worker_dataset import next_batch

if TYPE_CHECKING:
    from replicax._ps.data.per_worker_dataset import PerWorkerIterator


@final
class Slot:
    """Stands for a per-worker iterator while a function of it is traced: for that of any epoch.

    And for that of any data set with such batches. Programs hold it, and it does not hold the data.
    """

    def __init__(self, number: int, shapes: Any) -> None:
        self.number, self.shapes = number, shapes

    def __iter__(self) -> Slot:
        return self

    def __next__(self) -> Any:
        return next_batch(self)

    def get_next(self) -> Any:
        """The next batch."""
        return next(self)


@final
class Slots:
    """One slot for all iterators that a program can be shared by."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Slot] = {}

    def of(self, iterator: PerWorkerIterator, number: int) -> Slot:
        """What stands for the iterator that is argument `number` of a function."""
        leaves, tree = jax.tree.flatten(iterator.shapes)
        return self._known.setdefault((number, tree, *leaves), Slot(number, iterator.shapes))

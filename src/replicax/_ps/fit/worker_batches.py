"""Data that workers read by themselves as input of `fit`, `evaluate` and `predict`.

Keras' loop draws a promise of a batch, and the closure takes the batch on its worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, final

import jax
import numpy as np

from replicax._fit.data import DatasetAdapter, no_length


@final
class PassOfWorkers:
    """One pass of the workers over their data."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self.is_begun = False

    def take(self) -> Any:
        """The iterator, for a closure that takes its next batch."""
        self.is_begun = True
        return self.iterator


@final
class Promised(np.ndarray):
    """An array of a batch that some worker will read; Keras uses only its shape."""

    source: PassOfWorkers


def promised(batch: Any) -> PassOfWorkers | None:
    """The source of a batch that a worker is to read."""
    first = next(iter(jax.tree.leaves(batch)), None)
    return first.source if isinstance(first, Promised) else None


def _promise(array: Any, source: PassOfWorkers) -> Promised:
    found = np.asarray(array).view(Promised)
    found.source = source
    return found


@final
class WorkerDataAdapter(DatasetAdapter):
    """The adapter by which Keras' loops read a per-worker data set."""

    def __init__(self, dataset: Any, steps: int | None) -> None:
        if steps is None and dataset.num_batches is None:
            raise no_length(of_validation=False)
        self._dataset = dataset
        self._pass: PassOfWorkers | None = None

    def get_numpy_iterator(self) -> Iterator[Any]:
        # Keras looks at the first batch before it begins: that is no pass.
        if self._pass is None or self._pass.is_begun:
            self._pass = PassOfWorkers(iter(self._dataset))
        source, count = self._pass, self._dataset.num_batches
        batch = jax.tree.map(lambda array: _promise(array, source), self._dataset.example)
        yield from itertools.repeat(batch) if count is None else itertools.repeat(batch, count)

    @property
    def position(self) -> Any:
        """What is left of the pass, if workers share the data and no closure is under way."""
        is_shared = self._dataset.shard == "dynamic"
        return self._pass.iterator.get_state() if self._pass and is_shared else None

    def go_to(self, position: Any, *, is_over: bool) -> None:
        """Let the next pass be the one that a position is of, or the one behind it."""
        iterator = iter(self._dataset)
        iterator.set_state(position)
        self._pass = None if is_over else PassOfWorkers(iterator)

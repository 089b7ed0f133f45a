"""Data that workers read by themselves as input of `fit`, `evaluate` and `predict`.

Keras' loop draws batches; here it draws a promise of one, which the closure takes on its worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax._keras import _compat


@final
class PassOfWorkers:
    """One pass of the workers over their data.

    Args:
        iterator: The per-worker iterator.
    """

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self.is_begun = False

    def take(self) -> Any:
        """The iterator, for a closure that takes the next batch of it."""
        self.is_begun = True
        return self.iterator


@final
class Promised(np.ndarray):
    """An array of a batch that some worker will read. Keras looks at its shape only."""

    source: PassOfWorkers


def promised(batch: Any) -> PassOfWorkers | None:
    """What a batch is taken from, if a worker is to read it."""
    first = next(iter(jax.tree.leaves(batch)), None)
    return first.source if isinstance(first, Promised) else None


def _promise(array: Any, source: PassOfWorkers) -> Promised:
    found = np.asarray(array).view(Promised)
    found.source = source
    return found


@final
class WorkerDataAdapter(_compat.DataAdapter):
    """What Keras' loops read a per-worker data set through.

    Args:
        dataset: Has `example`, `num_batches`, and iterators for closures.
        steps: How many steps the caller wants; None for all.

    Raises:
        UsageError: If nobody says how many steps there are.
    """

    def __init__(self, dataset: Any, steps: int | None) -> None:
        if steps is None and dataset.num_batches is None:
            raise _no_length(of_validation=False)
        self._dataset = dataset
        self._pass: PassOfWorkers | None = None

    def get_numpy_iterator(self) -> Iterator[Any]:
        # Keras looks at the first batch before it begins: that is no pass.
        if self._pass is None or self._pass.is_begun:
            self._pass = PassOfWorkers(iter(self._dataset))
        source, count = self._pass, self._dataset.num_batches
        batch = jax.tree.map(lambda array: _promise(array, source), self._dataset.example)
        yield from itertools.repeat(batch) if count is None else itertools.repeat(batch, count)

    def get_jax_iterator(self) -> Iterator[Any]:
        return self.get_numpy_iterator()

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

    @property
    def num_batches(self) -> int | None:
        return self._dataset.num_batches

    @property
    def batch_size(self) -> None:
        return None

    @property
    def has_partial_batch(self) -> None:
        return None

    @property
    def partial_batch_size(self) -> None:
        return None


def refuse_endless_validation(arguments: dict[str, Any]) -> None:
    """Refuse before training what could not be evaluated after the first epoch.

    Raises:
        UsageError: If validation data that each worker makes comes without a number of steps.
    """
    if is_creator(arguments.get("validation_data")) and not arguments.get("validation_steps"):
        raise _no_length(of_validation=True)


def is_creator(value: Any) -> bool:
    """Whether a value is a `DatasetCreator`."""
    return callable(getattr(value, "created_by", None))


def is_per_worker(value: Any) -> bool:
    """Whether a value is a data set that workers read by themselves."""
    return callable(getattr(value, "changed_by", None)) and hasattr(value, "shard")


def _no_length(*, of_validation: bool) -> UsageError:
    argument = "`validation_steps` beside it" if of_validation else "`steps_per_epoch` (or `steps`)"
    return UsageError(
        "Data that each worker makes and reads by itself has no end that all would agree on. "
        f"Received: such data without {argument}. An epoch would never be over. Say how many "
        'batches it has, for all workers together; or share the data with shard="dynamic".'
    )


def not_of_workers(value: Any) -> UsageError:
    """The error of data of workers for a model that no worker trains."""
    return UsageError(
        "A per-worker data set is read by the workers of a ParameterServerStrategy. Received: a "
        f"{type(value).__name__} for a model that was not made in the scope of one. Nobody would "
        "read it. Make the model in the scope of the strategy, or pass the data set itself."
    )

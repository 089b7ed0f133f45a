"""The data that workers read by themselves: what the coordinator sends, and who reads it there."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import cloudpickle
import jax
import numpy as np

from replicax._core.errors import ClosureInputError, OutOfRangeError, UsageError
from replicax._input.source import as_dataset
from replicax._keras import _compat
from replicax._keras.no_variables import variables_refused
from replicax._keras.recorder import recorder_of
from replicax._ps.on_worker import on_worker
from replicax.data import Dataset
from replicax.data._seeds import drawn_seeds, with_seeds


class NeedsProgram(Exception):
    """A batch has other shapes than the program that is to read it.

    Args:
        source: The number of the batch among those of the closure.
        shapes: The batch's shapes and types.
    """

    def __init__(self, source: int, shapes: list[Any]) -> None:
        self.source, self.shapes = source, shapes


_numbers = itertools.count()


@final
class PerWorkerDataset:
    """A data set of which every worker has its own copy, or its share; for closures.

    Args:
        make: Gives the data set, on a worker; or the data set itself.
        shard: "off": each worker reads all of it. "dynamic": workers share the splits of it.
    """

    def __init__(self, make: Any, shard: str = "off") -> None:
        self.make, self.shard = make, shard
        self.payload = cloudpickle.dumps(make)

    def __iter__(self) -> PerWorkerIterator:
        return PerWorkerIterator(self)

    @functools.cached_property
    def example(self) -> Any:
        """A batch, for its shapes: made here, on the coordinator."""
        with on_worker(0):
            for batch in _batches(self.make):
                return batch
        raise OutOfRangeError(
            "A data set for closures has batches. Received: one without any. There is nothing to "
            "train on. Check the function that makes it."
        )


@final
class PerWorkerIterator:
    """An iterator on every worker; `next` of it is for closures."""

    def __init__(self, dataset: PerWorkerDataset) -> None:
        self.dataset = dataset
        self.resource = next(_numbers)

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> Any:
        recorder = recorder_of(_compat.get_stateless_scope())
        if recorder is None:
            raise UsageError(
                "The data of workers is read by closures. Received: `next` of a per-worker "
                "iterator outside a scheduled function. Each worker has an iterator of its own, "
                "the coordinator has none. Pass the iterator to `coordinator.schedule`, and call "
                "`next` in the function."
            )
        return recorder.next_batch(self)

    def get_next(self) -> Any:
        """The next batch, in a closure."""
        return next(self)


@final
class Readers:
    """The iterators of one worker, and the batches that its closures have taken.

    Args:
        worker: Which worker it is.
    """

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._payloads: dict[int, Any] = {}
        self._iterators: dict[int, Iterator[Any]] = {}
        # One for each iterator: a closure that waits for slow data holds up none with other data.
        self._reading: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._taken: dict[int, list[Any]] = {}

    def add(self, resource: int, shard: str, payload: Any) -> None:
        """Take a data set, for an iterator; one that is there already is kept."""
        with self._lock:
            self._payloads.setdefault(resource, (shard, bytes(payload)))

    def forget(self, closure: int) -> None:
        """A closure is finished: its batches will not be asked for again."""
        with self._lock:
            self._taken.pop(closure, None)

    def batches(
        self, closure: int, wanted: Sequence[tuple[int, Any]], splits: Sequence[Any]
    ) -> list[np.ndarray]:
        """The leaves of a closure's batches; again the same ones if it is run again.

        Raises:
            NeedsProgram: If a batch has other shapes than the program.
            OutOfRangeError: If there is no batch any more.
            ClosureInputError: If the data set cannot be made.
        """
        leaves: list[np.ndarray] = []
        if not wanted:
            return leaves
        with self._lock:
            taken = self._taken.setdefault(closure, [])
        for number, (resource, shapes) in enumerate(wanted):
            if len(taken) <= number:
                with self._lock:
                    reading = self._reading[resource]
                with reading:
                    taken.append(self._next(resource, splits[number]))
            found = [[list(x.shape), str(x.dtype)] for x in taken[number]]
            if found != shapes:
                raise NeedsProgram(number, found)
            leaves += taken[number]
        return leaves

    def _next(self, resource: int, split: Any) -> list[np.ndarray]:
        if resource not in self._iterators:
            self._iterators[resource] = self._open(resource)
        try:
            with on_worker(self._worker):
                batch = next(self._iterators[resource])
        except StopIteration:
            raise OutOfRangeError(
                "A closure takes a batch that its worker's data set has. Received: the end of the "
                f"data of worker {self._worker}. Each worker reads its own copy of the data set. "
                "Repeat the data set, and schedule as many closures as are wanted."
            ) from None
        return [np.asarray(leaf) for leaf in jax.tree.leaves(batch)]

    def _open(self, resource: int) -> Iterator[Any]:
        shard, payload = self._payloads[resource]
        try:
            with on_worker(self._worker):
                made = cloudpickle.loads(payload)
                return _batches(made, order=self._worker if shard == "off" else 0)
        except Exception as error:
            raise ClosureInputError(
                "The data set of a closure has to be made before the closure can run. Received: "
                f"{error!r} on worker {self._worker}. The function that makes it runs on every "
                "worker. Mend the function; files that it reads have to be there as well."
            ) from error


def _batches(made: Any, *, order: int = 0) -> Iterator[Any]:
    with variables_refused():
        dataset: Any = made() if isinstance(made, Callable) else made
    if isinstance(dataset, Dataset):
        dataset = _in_order(dataset, order)
    host = getattr(dataset, "host_batches", None)
    return iter(host() if host is not None else as_dataset(dataset))


def _in_order(dataset: Dataset, number: int) -> Dataset:
    """A data set that is shuffled in another way for each number, unless its user gave a seed."""
    drawn = drawn_seeds(dataset.prepared()) if number else []
    seeds = {
        seed: int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) for seed in drawn
    }
    return Dataset(with_seeds(dataset.prepared(), seeds)) if drawn else dataset

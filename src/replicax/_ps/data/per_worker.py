"""Data sets and values of each worker, as the coordinator sees them, and the worker's number.

`worker_data.py` reads the data sets on a worker.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, final

import cloudpickle
import jax
import numpy as np

from replicax._core.errors import OutOfRangeError, UsageError
from replicax._core.tracing import around, with_around
from replicax._input.context import InputContext
from replicax._input.dataset import DistributedDataset
from replicax._input.source import as_dataset
from replicax._program.capture import current_recorder
from replicax._ps.data.splits import Division, Splits, divisible, whole
from replicax._ps.data.worker_data import made
from replicax._ps.steps import WorkerDataAdapter
from replicax.data._derive import Epochs
from replicax.data._node import Feed

if TYPE_CHECKING:
    from replicax._core.options import InputOptions
    from replicax._ps.data.splits import Place
    from replicax._ps.queue.closures import Closure

_numbers = itertools.count()


@final
class PerWorkerValues:
    """A value with one component for each worker; a scheduled function gets its worker's.

    Args:
        values: The components, in the order of the workers.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
        >>> coordinator = rx.coordinator.ClusterCoordinator(strategy)
        >>> @rx.function
        ... def add_one(x):
        ...     return x + 1
        >>> bases = rx.coordinator.PerWorkerValues([10, 20])
        >>> values = [coordinator.schedule(add_one, args=(bases,)) for _ in range(4)]
        >>> set(map(int, coordinator.fetch(values))) <= {11, 21}
        True
    """

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = tuple(values)

    def __repr__(self) -> str:
        return f"PerWorkerValues({list(self._values)!r})"

    @property
    def values(self) -> tuple[Any, ...]:
        """The components, in the order of the workers."""
        return self._values

    def of_worker(self, worker: int) -> Any:
        """The component of one worker.

        Raises:
            UsageError: If there is none.
        """
        if not 0 <= worker < len(self._values):
            raise UsageError(
                f"No component for worker {worker}, counted from 0: this per-worker value has "
                f"{len(self._values)}. If workers have joined since, make it again with one for "
                "each."
            )
        return self._values[worker]


def _note_when_gone(owner: Any, unused: list[int]) -> None:
    weakref.finalize(owner, unused.append, owner.number).atexit = False


@final
class PerWorkerDataset:
    """A data set of which every worker has its own copy, or its share; for closures.

    `make` is the data set, or makes it on a worker. With shard "off" each worker reads all of it,
    with "dynamic" workers share its splits. `change` is applied to each batch, on the worker.
    `unused` gets the numbers of data sets and iterators that were freed; workers drop them.
    """

    def __init__(
        self,
        make: Any,
        shard: str = "off",
        *,
        num_splits: int | None = None,
        workers: Callable[[], int] = lambda: 1,
        unused: list[int] | None = None,
        change: Callable[[Any], Any] | None = None,
    ) -> None:
        if isinstance(make, DistributedDataset):
            make = whole(make)
        self.make, self.shard, self.change = make, shard, change
        self.number = next(_numbers)
        self.unused: list[int] = [] if unused is None else unused
        _note_when_gone(self, self.unused)
        self._num_splits, self._workers = num_splits, workers
        self._epochs = Epochs()
        self.division: Division | None = None
        if shard == "dynamic":
            shared = divisible(self._made)
            self._epochs = shared.epochs
            self.division = Division.of(shared, num_splits=num_splits, workers=workers())
        self.payload = _payload(make, change, self.division)

    def __iter__(self) -> PerWorkerIterator:
        return PerWorkerIterator(self, self.begin_epoch())

    def __len__(self) -> int:
        """The number of batches of an epoch; if unknown a TypeError, as Python wants it."""
        if self.num_batches is not None:
            return self.num_batches
        raise TypeError(
            f"The length of a data set with shard={self.shard!r} is not known. Schedule closures "
            "until `OutOfRangeError`."
        )

    def __bool__(self) -> bool:
        """Always true, as a data set is not nothing; without asking for its length."""
        return True

    @property
    def num_batches(self) -> int | None:
        """The number of batches of an epoch, if workers share it and that is known."""
        return self.division.count if self.division is not None else None

    def changed_by(self, change: Callable[[Any], Any]) -> PerWorkerDataset:
        """The same data set, with another function for each batch."""
        return PerWorkerDataset(
            self.make,
            self.shard,
            num_splits=self._num_splits,
            workers=self._workers,
            unused=self.unused,
            change=change,
        )

    def as_adapter(self, steps: int | None) -> WorkerDataAdapter:
        """The adapter for Keras' loops, for this many steps; None for all."""
        return WorkerDataAdapter(self, steps)

    def begin_epoch(self, after: int | None = None) -> int:
        """The number of a new pass; with `after`, that number, from which counting goes on."""
        return self._epochs.next(after)

    def divide_like(self, division: Division) -> None:
        """Adopt the division of another program, to go on from its position."""
        if division != self.division:
            self.division, self.number = division, next(_numbers)
            _note_when_gone(self, self.unused)
            self.payload = _payload(self.make, self.change, division)

    def splits(self) -> Splits | None:
        """The splits of a new epoch, if workers share it."""
        if self.division is None:
            return None
        return self.division.splits(self._num_splits, self._workers())

    @functools.cached_property
    def _made(self) -> Any:
        with with_around(worker=0):
            return made(self.make)

    @functools.cached_property
    def example(self) -> Any:
        """A batch made on the coordinator, for its shapes."""
        with with_around(worker=0):
            for batch in _first(self._made):
                return batch if self.change is None else self.change(batch)
        raise OutOfRangeError("The data set has no batches. Check the function that makes it.")

    @functools.cached_property
    def shapes(self) -> Any:
        """The shapes and types of a batch."""
        return jax.tree.map(_shape_of, self.example)


class _ForClosures:
    """The iteration over batches of workers: only closures take them."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        recorder = current_recorder()
        if recorder is None:
            raise UsageError(
                "Cannot call `next` of a per-worker iterator outside a scheduled function. Pass "
                "the iterator to `coordinator.schedule`, and call `next` in the function."
            )
        return recorder.next_batch(self)

    def get_next(self) -> Any:
        """The next batch, in a closure."""
        return next(self)


@final
class PerWorkerIterator(_ForClosures):
    """An iterator on every worker; only closures call `next` on it."""

    def __init__(self, dataset: PerWorkerDataset, epoch: int) -> None:
        self.dataset, self.epoch = dataset, epoch
        self.number = next(_numbers)
        self.splits = dataset.splits()
        _note_when_gone(self, dataset.unused)

    @property
    def shapes(self) -> Any:
        return self.dataset.shapes

    def place(self, closure: Closure, number: int, worker: int) -> Place | None:
        """The place of a closure's batch; None if its worker simply reads on."""
        if self.splits is None:
            return None
        place = self.splits.give(closure, number, worker)
        if place is None:
            raise OutOfRangeError(
                f"Epoch {self.epoch} of the data set that workers share has no more batches. Begin "
                "the next epoch with `iter(dataset)`; `len(dataset)` is its number of batches, if "
                "known."
            )
        return place

    def get_state(self) -> dict[str, Any]:
        """The rest of an epoch that workers share, for `set_state`, also of another program.

        It is made of numbers, lists and dicts, so that it can be saved anywhere. Closures that have
        not ended count as not begun: call `join` first.
        """
        division, splits = self._shared()
        return {"epoch": self.epoch, **division.described(), **splits.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` was called; the epochs that follow come after that one.

        The state of another data set raises a `UsageError`.
        """
        division, _ = self._shared()
        self.dataset.divide_like(division.resumed(state))
        self.epoch = self.dataset.begin_epoch(after=state["epoch"])
        self.splits = Splits(state["left"], further=state["further"])

    def _shared(self) -> tuple[Division, Splits]:
        if self.dataset.division is None or self.splits is None:
            raise UsageError(
                f"A per-worker iterator with shard={self.dataset.shard!r} has no position. Create "
                'it with shard="dynamic".'
            )
        return self.dataset.division, self.splits


@final
class Slot(_ForClosures):
    """Stands for a per-worker iterator while a function of it is traced, and in its program.

    It stands for the iterator of any epoch, and of any data set with such batches. Programs hold
    it, and it does not hold the data.
    """

    def __init__(self, number: int, shapes: Any) -> None:
        self.number, self.shapes = number, shapes


def slot_of(known: dict[Hashable, Slot], iterator: PerWorkerIterator, number: int) -> Slot:
    """The slot for argument `number` of a function: one for all iterators with such batches."""
    leaves, tree = jax.tree.flatten(iterator.shapes)
    return known.setdefault((number, tree, *leaves), Slot(number, iterator.shapes))


def _payload(*parts: Any) -> bytes:
    try:
        return cloudpickle.dumps(parts)
    except Exception as error:
        raise UsageError(
            f"Cannot send the data set to the workers: {type(error).__name__}: {error}. Pass a "
            "function that makes it, and create generators, locks and open files in that function."
        ) from error


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    array = np.asarray(leaf)
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _first(made: Any) -> Any:
    """The first batch of a data set, read without a pass that would count."""
    return Feed(whole(made).prepared().sample, (0,)).elements(1)


class NotOnWorker(UsageError, RuntimeError):
    """Raised when code asks for its worker and there is none."""


def _own_numbers() -> Iterator[Any]:
    while True:
        yield np.int32(around().worker or 0)


# A closure is the same program on all workers, so it reads the worker's number as data.
_NUMBERS = iter(PerWorkerDataset(_own_numbers))


def experimental_get_current_worker_index() -> Any:
    """The number of the worker that runs this code, from 0.

    Inside a function that makes a data set for each worker
    (`ClusterCoordinator.create_per_worker_dataset`), and inside scheduled functions.

    Returns:
        The number; in a scheduled function as an array, which is known when it runs.

    Raises:
        NotOnWorker: If the code runs on no worker.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
        >>> coordinator = rx.coordinator.ClusterCoordinator(strategy)
        >>> def dataset_fn():
        ...     worker = rx.coordinator.experimental_get_current_worker_index()
        ...     return rx.data.Dataset.range(10).shard(2, worker)
        >>> per_worker = iter(coordinator.create_per_worker_dataset(dataset_fn))
        >>> @rx.function
        ... def parity(iterator):
        ...     return next(iterator) % 2
        >>> parities = [coordinator.schedule(parity, args=(per_worker,)) for _ in range(5)]
        >>> set(map(int, coordinator.fetch(parities))) <= {0, 1}
        True
    """
    recorder = current_recorder()
    if recorder is not None:
        return recorder.next_batch(_NUMBERS)
    index = around().worker
    if index is None:
        raise NotOnWorker(
            "Cannot ask for the worker's number in the coordinator's own program. Ask inside a "
            "scheduled function, or inside the function passed to `create_per_worker_dataset`."
        )
    return index


@final
class DatasetCreator:
    """A function that makes a data set, for `fit`, `evaluate` and `predict`.

    Under parameter servers each worker calls it, and reads its own data; `steps_per_epoch` (or
    `steps`, `validation_steps`) then says how many batches all workers together compute with.
    Under other strategies it means what `strategy.distribute_datasets_from_function` makes of it.

    Args:
        dataset_fn: Called with an `InputContext`; returns a data set of batches. Let it shuffle
            and repeat: workers neither share the data nor agree on an order.
        input_options: How far ahead batches are placed; without effect under parameter servers.

    Raises:
        UsageError: If `dataset_fn` cannot be called.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> import replicax as rx
        >>> def dataset_fn(context):
        ...     x = np.ones((8, 2), "float32")
        ...     return rx.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(4)
        >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> history = model.fit(rx.DatasetCreator(dataset_fn), steps_per_epoch=3, verbose=0)
        >>> len(history.history["loss"])
        1
    """

    def __init__(
        self,
        dataset_fn: Callable[[InputContext], Any],
        input_options: InputOptions | None = None,
    ) -> None:
        if not callable(dataset_fn):
            raise UsageError(
                f"`dataset_fn` must be a function, got a {type(dataset_fn).__name__}. Write "
                "`DatasetCreator(lambda context: ...)`, or pass the data set itself to `fit`."
            )
        self.dataset_fn = dataset_fn
        self.input_options = input_options

    def created_by(self, distribute: Callable[..., Any] | None) -> Any:
        """The data set for a strategy.

        Args:
            distribute: Makes one of a function and options; None where there is no strategy.
        """
        if distribute is None:
            return as_dataset(self.dataset_fn(InputContext()))
        return distribute(self.dataset_fn, self.input_options)

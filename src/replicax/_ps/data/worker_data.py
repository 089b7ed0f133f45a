"""The data that a worker reads by itself for its closures; `per_worker.py` is the other side."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

import cloudpickle
import jax
import numpy as np

from replicax._core.errors import ClosureInputError, OutOfRangeError, UsageError
from replicax._core.tracing import with_around
from replicax._keras.distribution import with_distribution
from replicax._ps.data.splits import Division, Place, divisible, read, whole
from replicax.data._node import drawn_seeds, with_seeds

if TYPE_CHECKING:
    from replicax.data._node import Node

_REMEMBERED = 64  # closures that have not ended and may run here again

_OPEN = 3  # runs: one for each lane of a worker, and one just begun

Take = Callable[[Any], Any]
"""`(place) -> batch`, in one pass."""
Begin = Callable[[int], Take]
"""`(epoch) -> take`."""


class NeedsProgram(Exception):
    """The closure's batch of this number does not have the shapes of the program that reads it."""

    def __init__(self, source: int, shapes: list[Any]) -> None:
        super().__init__(source, shapes)
        self.source, self.shapes = source, shapes


class Ended(Exception):
    """A closure's place lies behind the end, after at most `length` batches."""

    def __init__(self, source: int, length: int) -> None:
        super().__init__(source, length)
        self.source, self.length = source, length


@final
class Readers:
    """The iterators of one worker, and the batches that its closures have taken."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._payloads: dict[int, bytes] = {}
        self._data: dict[int, tuple[Begin, Callable[[Any], Any] | None]] = {}
        self._readers: dict[int, Take] = {}
        # One for each iterator, so that slow data holds up no closure with other data.
        self._reading: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._taken: OrderedDict[int, list[Any]] = OrderedDict()

    def add(self, number: int, payloads: Sequence[Any]) -> bool:
        """Take a data set if one is sent; return whether it is there."""
        with self._lock:
            for payload in payloads:
                self._payloads.setdefault(number, bytes(payload))
            return number in self._payloads

    def drop(self, numbers: Sequence[int]) -> None:
        """Free iterators and data sets."""
        with self._lock:
            for number in numbers:
                for held in (self._payloads, self._data, self._readers, self._reading):
                    held.pop(number, None)

    def forget(self, closure: int) -> None:
        """Note that a closure is finished and its batches will not be asked for again."""
        with self._lock:
            self._taken.pop(closure, None)

    def batches(
        self, closure: int, wanted: Sequence[Any], sources: Sequence[Any]
    ) -> list[np.ndarray]:
        """The leaves of a closure's batches; the same ones again if it is run again.

        `wanted` are the shapes and types of the leaves of each batch; others raise `NeedsProgram`.
        `sources` are for each batch the number of the iterator and of its data set, the epoch, and
        the place, if workers share the data. `Ended` if there is no batch at its place.
        """
        leaves: list[np.ndarray] = []
        with self._lock:
            taken = self._taken.setdefault(closure, [])
        for number, shapes in enumerate(wanted):
            if len(taken) <= number:
                with self._lock:
                    reading = self._reading[sources[number][0]]
                with reading:
                    if len(taken) <= number:  # a broken connection may bring a closure twice
                        taken.append(self._next(number, *sources[number]))
            if not _fits(taken[number], shapes):
                raise NeedsProgram(number, [[list(x.shape), str(x.dtype)] for x in taken[number]])
            leaves += taken[number]
        with self._lock:
            while len(self._taken) > _REMEMBERED:
                self._taken.popitem(last=False)
        return leaves

    def _next(self, source: int, iterator: int, data: int, epoch: int, place: Any) -> list[Any]:
        with with_around(worker=self._worker):
            begin, change = self._made(data)
            take = self._readers.get(iterator)
            if take is None:
                take = self._readers[iterator] = begin(epoch)
            try:
                batch = take(_place(place))
            except PartEnded as end:
                raise Ended(source, end.length) from None
            except StopIteration:
                raise OutOfRangeError(
                    f"The data set of worker {self._worker} has no more batches. Repeat the data "
                    "set, or schedule fewer closures."
                ) from None
            if change is not None:
                batch = change(batch)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(batch)]

    def _made(self, number: int) -> tuple[Begin, Callable[[Any], Any] | None]:
        if number not in self._data:
            try:
                make, change, division = cloudpickle.loads(self._payloads[number])
                if division is None:
                    begin = Copy(make, self._worker).begin
                else:
                    begin = shared(make, division, self._worker)
                self._data[number] = begin, change
            except Exception as error:
                raise ClosureInputError(
                    f"Worker {self._worker} cannot make the data set: {error!r}. Fix the function "
                    "that makes it; the files it reads must exist on every worker."
                ) from error
        return self._data[number]


def _fits(leaves: Sequence[np.ndarray], shapes: Sequence[Any]) -> bool:
    return len(leaves) == len(shapes) and all(
        leaf.shape == tuple(shape) and leaf.dtype == np.dtype(dtype)
        for leaf, (shape, dtype) in zip(leaves, shapes, strict=True)
    )


@final
class Copy:
    """A data set of which this worker reads all."""

    def __init__(self, make: Any, worker: int) -> None:
        self._make, self._worker = make, worker
        self._made = made(make)

    def begin(self, epoch: int) -> Take:
        if epoch and isinstance(self._made, Iterator):
            self._made = made(self._make)  # a data set made by the function is read once
        node = in_own_order(whole(self._made).prepared(), self._worker)
        batches = read(node, epoch)
        return lambda place: next(batches)


def shared(make: Any, division: Division, worker: int) -> Begin:
    """A data set that this worker shares."""
    node = division.agreed(divisible(made(make)), worker)
    return lambda epoch: SplitReader(partial(division.batches, node, epoch)).batch


def _place(numbers: Any) -> Any:
    if numbers is None:
        return None
    part, number, stop, others = numbers
    return Place(part, number, stop, tuple(map(tuple, others)))


def in_own_order(node: Node, worker: int) -> Node:
    """Data shuffled differently on each worker, unless the user gave a seed."""
    drawn = drawn_seeds(node) if worker else []
    seeds = {
        seed: int(np.random.SeedSequence([seed, worker]).generate_state(1)[0]) for seed in drawn
    }
    return with_seeds(node, seeds) if drawn else node


class PartEnded(Exception):
    """A part has fewer batches than expected."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length


@final
@dataclass
class _Run:
    part: int
    next: int
    stop: int | None
    batches: Iterator[Any]


@final
class SplitReader:
    """Reads forward; batches on its way that other closures were promised are kept.

    `begin` is called with a place. It returns the number of a batch at or before the place, the
    number of the end unless the part ends there, and the batches between.
    """

    def __init__(self, begin: Callable[[Place], tuple[int, int | None, Iterator[Any]]]) -> None:
        self._begin = begin
        self._runs: list[_Run] = []
        self._kept: dict[tuple[int, int], Any] = {}

    def batch(self, place: Place) -> Any:
        wanted = place.part, place.number
        if wanted in self._kept:
            return self._kept.pop(wanted)
        run = self._run_to(place)
        while True:
            try:
                batch = next(run.batches)
            except StopIteration:
                self._runs.remove(run)
                raise PartEnded(run.next) from None
            here, run.next = (run.part, run.next), run.next + 1
            if here == wanted:
                break
            if here in place.keep:
                self._kept[here] = batch
        self._kept = {key: kept for key, kept in self._kept.items() if key in place.keep}
        return batch

    def _run_to(self, place: Place) -> _Run:
        for run in self._runs:
            behind = run.stop is not None and place.number >= run.stop
            if run.part == place.part and run.next <= place.number and not behind:
                return run
        run = _Run(place.part, *self._begin(place))
        self._runs = [*self._runs[1 - _OPEN :], run]
        return run


def made(make: Any) -> Any:
    """The data set that a function makes, or the data set itself."""
    with with_distribution(_Refusal()):
        return make() if callable(make) else make


@final
class _Refusal:
    """Takes the place of a Keras distribution, and refuses to place new variables."""

    def get_variable_layout(self, variable: Any) -> Any:
        raise UsageError(
            f"Cannot create variable '{variable.path}' in a function that makes a data set: it "
            "runs on every worker. Create the variable or its layer before, in the strategy's "
            "scope, or compute with NumPy."
        )

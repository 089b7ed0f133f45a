"""A data set of any library → a `Dataset` of nests of host arrays.

Data sets are recognised by their protocol, so that no library has to be imported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import BatchStructureChanged, ExhaustedInput, UnbatchedInput, UsageError
from replicax.data import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Dataset
from replicax.data._formatted import formatted_iterator, has_formats
from replicax.data._node import Cursor, Node, OneByOne, Path
from replicax.data._spec import is_composite, parts_of, spec_of


def as_dataset(value: Any) -> Dataset:
    """Make a `Dataset` of batches, which are nests of NumPy or JAX arrays, from a user's data set.

    This may be a `Dataset`, a list or another re-iterable of batches, a Keras `PyDataset`, a Grain
    data set, a torch `DataLoader`, a tf.data data set, a Hugging Face data set of batches, a
    function that returns an iterator, a generator (one pass), or a nest of arrays (one batch).
    """
    if isinstance(value, Dataset):
        return value
    return Dataset(
        GeneratorSource(_Generator(value)) if isinstance(value, Iterator) else _external(value)
    )


def _external(value: Any) -> ExternalSource:
    batches: Any = value
    if _is_nest_of_arrays(value):
        return ExternalSource(lambda start: iter([value][start:]), 1, seekable=True)
    if callable(getattr(value, "as_numpy_iterator", None)):
        return ExternalSource(lambda _: batches.as_numpy_iterator(), _length(value))
    if callable(getattr(value, "on_epoch_end", None)) and hasattr(value, "__getitem__"):
        return ExternalSource(
            lambda start: _py_dataset(value, start), _length(value), seekable=True
        )
    if has_formats(value):
        return ExternalSource(lambda _: formatted_iterator(value), _length(value))
    if isinstance(value, list | tuple):
        return ExternalSource(lambda start: iter(batches[start:]), len(value), seekable=True)
    if isinstance(value, Iterable) or hasattr(value, "__getitem__"):
        return ExternalSource(lambda _: iter(batches), _length(value))
    if callable(value):
        return ExternalSource(lambda _: iter(batches()), UNKNOWN_CARDINALITY)
    fix = (
        "Pass a `Dataset`, a list of batches, a PyDataset, a Grain data set, a DataLoader, or a "
        "function that returns an iterator."
    )
    raise UsageError.of("dataset", "an iterable of batches", value, fix)


@dataclass(frozen=True, eq=False)
class ExternalSource(Node):
    """Batches of another library.

    `restart(start)` returns an iterator: over all batches, or from number `start` if `seekable`.
    """

    restart: Callable[[int], Iterator[Any]]
    size: int
    seekable: bool = False

    @property
    def cardinality(self) -> int:
        return self.size

    @property
    def spec(self) -> Any:
        return _spec_of_first(list(self.open((0,)).read(1)))

    def open(self, path: Path) -> Cursor:
        return ExternalCursor(self)


@final
class ExternalCursor(OneByOne):
    """The position in an iterator: its own state if it has one, as in Grain, else a count."""

    def __init__(self, node: ExternalSource) -> None:
        self._node = node
        self._batches: Iterator[Any] | None = None
        self._taken = 0

    def make(self) -> Any:
        batch = as_nest(next(self._iterator(0)))
        self._taken += 1
        return batch

    def _iterator(self, start: int) -> Iterator[Any]:
        if self._batches is None:
            self._batches = self._node.restart(start)
        return self._batches

    def get_state(self) -> Any:
        own = getattr(self._iterator(0), "get_state", None)
        return {"taken": self._taken, "own": own() if callable(own) else None}

    def set_state(self, state: Any) -> None:
        own, taken = state["own"], state["taken"]
        if own is not None:
            getattr(self._iterator(0), "set_state")(own)  # noqa: B009 - a method of Grain
        elif self._node.seekable:
            self._iterator(taken)
        else:
            self.skip(taken)
        self._taken = taken


class _Generator:
    """A generator, whose batches can be read once, with a look at the first batch."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches: Iterator[Any] | None = batches

    def first(self) -> list[Any]:
        """The first batch, which stays in the stream; an empty list at the end."""
        batches = self.take()
        seen = [as_nest(batch) for batch in itertools.islice(batches, 1)]
        self._batches = itertools.chain(seen, batches)
        return seen

    def take(self) -> Iterator[Any]:
        """All batches; `ExhaustedInput` at a second call."""
        if self._batches is None:
            raise ExhaustedInput(
                "This generator was read before, and its batches are consumed. Pass the function "
                "that makes the generator, not the generator."
            )
        batches, self._batches = self._batches, None
        return batches


@dataclass(frozen=True, eq=False)
class GeneratorSource(Node):
    """Batches of a generator, which can be read once."""

    stream: _Generator

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        return _spec_of_first(self.stream.first())

    def open(self, path: Path) -> Cursor:
        batches = self.stream.take()
        return ExternalCursor(ExternalSource(lambda _: batches, UNKNOWN_CARDINALITY))


def _spec_of_first(batches: Sequence[Any]) -> Any:
    for batch in batches:
        return spec_of(batch)
    raise UsageError(
        "The data set is empty, so the shapes of its batches are unknown. Check the pipeline."
    )


def check_batch(batch: Any, number: int, structure: Any) -> Any:
    """Refuse a batch that cannot be split, or has another structure; return its structure.

    `structure` is the structure of the batches before, None for the first batch.
    """
    tree = check_structure(batch, number, structure)
    leaves = parts_of(batch)
    if has_scalars(batch):
        raise UnbatchedInput(
            "The data set yields scalars, which cannot be divided over replicas. Call its `batch` "
            "before you distribute it."
        )
    if len({leaf.shape[0] for leaf in leaves}) > 1:
        raise UnbatchedInput(
            "The arrays of a batch differ in their number of rows: "
            f"{[leaf.shape for leaf in leaves]}. Call `batch` before you distribute the data set, "
            "and pass arrays without a batch axis another way."
        )
    return tree


def has_scalars(batch: Any) -> bool:
    """Whether a batch or its spec is a single element, with a leaf without axes."""
    return any(len(np.shape(leaf)) == 0 for leaf in jax.tree.leaves(batch))


def check_structure(batch: Any, number: int, structure: Any) -> Any:
    """Refuse a batch whose structure differs from the batches before; return its structure."""
    tree = jax.tree.structure(batch, is_leaf=is_composite)
    if structure is not None and tree != structure:
        raise BatchStructureChanged(
            f"Batch {number} has structure {tree}, but the batches before have {structure}. Yield "
            "the same nest each time."
        )
    return tree


def as_nest(batch: Any) -> Any:
    """Convert a batch of another library to a nest of NumPy or JAX arrays; lists stay nests."""
    return jax.tree.map(_as_array, batch)


def _as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.Array | np.ndarray) else np.asarray(leaf)


def _length(value: Any) -> int:
    if hasattr(value, "num_batches"):
        # Keras: None for an infinite data set.
        return INFINITE_CARDINALITY if value.num_batches is None else value.num_batches
    if callable(getattr(value, "cardinality", None)):
        return int(value.cardinality())  # tf.data uses the same negative numbers
    try:
        return len(value)
    except TypeError:  # for example a DataLoader over a stream
        return UNKNOWN_CARDINALITY


def _py_dataset(dataset: Any, start: int) -> Iterator[Any]:
    if callable(getattr(dataset, "on_epoch_begin", None)):
        dataset.on_epoch_begin()
    count = _length(dataset)
    for index in itertools.count(start) if count < 0 else range(start, count):
        yield dataset[index]
    dataset.on_epoch_end()


def _is_nest_of_arrays(value: Any) -> bool:
    if isinstance(value, tuple | Mapping):
        parts = value.values() if isinstance(value, Mapping) else value
        given = [part for part in parts if part is not None]  # `(x, y, None)` is a nest too
        return bool(given) and all(_is_nest_of_arrays(part) for part in given)
    return isinstance(value, jax.Array | np.ndarray)

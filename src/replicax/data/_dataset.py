"""`Dataset`: the public face of a pipeline, and its iterator, which holds the position."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any, final

import jax

from replicax._core.errors import UsageError
from replicax._core.events import INPUT, timed
from replicax._core.seams import put_in_if_keras_is_there
from replicax._core.tracing import current_reader, refuse_inside_a_trace, refuse_to_loop
from replicax.data._creation import Creation, Storage
from replicax.data._derive import Epochs
from replicax.data._element import plain, yielded
from replicax.data._iterators import (
    Optional,
    before,
    next_as_optional,
    next_or_error,
    noted,
    outline,
    refuse_if_read,
    resumed,
)
from replicax.data._mapping import Mapping
from replicax.data._node import INFINITE_CARDINALITY, Cardinality, Feed, Node, with_seeds
from replicax.data._nodes.ahead import batches_of, read_ahead
from replicax.data._nodes.map import Map
from replicax.data._options import AUTOTUNE, Options
from replicax.data._selection import Batching, Selection

# Batches ready while `fit` computes, so that one slow batch goes unnoticed.
_AHEAD_OF_FIT = 2


class Dataset(Creation, Selection, Batching, Mapping, Storage):
    """A description of how elements are made, with the names and meanings of tf.data.

    It never changes: each method returns another data set. Iterating over it starts a pass, and
    the iterator holds the position, which can be saved and set. Elements are nests (tuple,
    dict) of NumPy arrays; text is `str` and binary data `bytes`. Every `iter` is the next
    epoch.

    **Differs from TF:** functions are plain Python, no graph is traced; text is `str`.

    Args:
        node: The pipeline; use the constructors, such as `from_tensor_slices`.
        options: See `with_options`.
        epochs: The numbering of passes.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
        >>> dataset = rx.data.Dataset.from_tensor_slices((x, y)).shuffle(6, seed=0).batch(4)
        >>> [labels.shape for images, labels in dataset]
        [(4,), (2,)]
    """

    def __init__(
        self, node: Node, options: Options | None = None, epochs: Epochs | None = None
    ) -> None:
        put_in_if_keras_is_there()
        self.node = node
        self._options = options or Options()
        self.epochs = epochs or Epochs()

    def __iter__(self) -> DatasetIterator:
        refuse_to_loop("loops over a data set")
        return DatasetIterator(self)

    def prepared(self) -> Node:
        """The node as it is read: with the options and the seeds of a position applied."""
        return _prepared(with_seeds(self.node, self.epochs.seeds), self._options)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """The elements, with every array a NumPy array.

        Example:
            >>> import replicax as rx
            >>> [batch.tolist() for batch in rx.data.Dataset.range(3).batch(2).as_numpy_iterator()]
            [[0, 1], [2]]
        """
        return (jax.tree.map(plain, element) for element in self)

    @property
    def element_spec(self) -> Any:
        """An `ArraySpec` for each array of an element.

        Where a function of the user makes the elements, the first one is made to see it.

        Example:
            >>> import replicax as rx
            >>> rx.data.Dataset.from_tensor_slices([[1.0, 2.0]]).element_spec
            ArraySpec(shape=(2,), dtype=float32)
        """
        return self.node.spec

    def cardinality(self) -> int:
        """The number of elements.

        Returns:
            Their number, `INFINITE_CARDINALITY` (-1) or `UNKNOWN_CARDINALITY` (-2).

        Example:
            >>> import replicax as rx
            >>> dataset = rx.data.Dataset.range(5)
            >>> dataset.batch(2).cardinality(), dataset.filter(bool).cardinality()
            (3, -2)
        """
        return Cardinality(self.node.cardinality)

    def host_batches(self) -> Iterator[Any]:
        """One epoch as `fit` reads it: batches in memory of their own, read ahead by a thread.

        Raises:
            UsageError: While it is read, if the elements are no batches.
        """
        feed = Feed(self.prepared(), (self.epochs.next(),))
        return read_ahead(batches_of(feed), _AHEAD_OF_FIT)

    @property
    def num_batches(self) -> int | None:
        """The number of elements, for `fit`; None if it is infinite or unknown."""
        number = self.cardinality()
        return number if number >= 0 else None

    def __len__(self) -> int:
        """The number of elements.

        Raises:
            TypeError: If it is infinite or unknown, as Python requires of `len`.
        """
        number = self.cardinality()
        if number >= 0:
            return number
        what = "infinite" if number == INFINITE_CARDINALITY else "unknown"
        raise TypeError(
            f"The length of this data set is {what}. Use `cardinality()`, or count the elements."
        )

    def __bool__(self) -> bool:
        """Always true, without asking for the length."""
        return True

    def options(self) -> Options:
        """A copy of the options that were given."""
        return copy.deepcopy(self._options)

    def with_options(self, options: Options) -> Dataset:
        """The same data set with options.

        Args:
            options: Fields that differ from the defaults replace earlier ones.

        Raises:
            UsageError: If they are no `Options`.

        Example:
            >>> import replicax as rx
            >>> options = rx.data.Options()
            >>> options.deterministic = False
            >>> rx.data.Dataset.range(2).with_options(options).options().deterministic
            False
        """
        if not isinstance(options, Options):
            raise UsageError.of("options", "an `rx.data.Options`", options)
        return Dataset(self.node, self._options.merged(options), self.epochs)

    def __repr__(self) -> str:
        return f"<Dataset {outline(self.node, source='()')}>"


def _prepared(node: Node, options: Options) -> Node:
    """`node` with the options for parallel functions applied."""
    threads = options.threading.private_threadpool_size

    def change(inner: Node) -> Node:
        if not isinstance(inner, Map):
            return inner
        ordered = options.deterministic is not False if inner.ordered is None else inner.ordered
        calls = threads if threads and inner.calls == AUTOTUNE else inner.calls
        if (ordered, calls) == (inner.ordered, inner.calls):
            return inner
        return dataclasses.replace(inner, ordered=ordered, calls=calls)

    return node.rewritten(change)


@final
class DatasetIterator:
    """One pass over a `Dataset`; it holds the position.

    Args:
        dataset: The data set to read.

    Example:
        >>> import replicax as rx
        >>> dataset = rx.data.Dataset.range(10).shuffle(10, seed=3)
        >>> iterator = iter(dataset)
        >>> taken = [int(next(iterator)) for _ in range(4)]
        >>> state = iterator.get_state()
        >>> rest = list(iterator)
        >>> again = iter(dataset)
        >>> again.set_state(state)
        >>> list(again) == rest
        True
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.begin_pass(dataset.epochs.next())

    def __iter__(self) -> DatasetIterator:
        refuse_to_loop("loops over a data set")
        return self

    def __next__(self) -> Any:
        refuse_if_read(self._is_read)
        reader = current_reader()
        if reader is not None:
            return reader.take(self)
        refuse_inside_a_trace()
        if self._waiting:
            return self._waiting.pop()[0]
        for element in timed(INPUT, self._feed.elements, 1):
            return yielded(element)
        raise StopIteration

    def put_back(self, element: Any, state: Any) -> None:
        """Give back an element with the state before it; it comes next again."""
        self._waiting.append((element, state))

    @property
    def dataset(self) -> Dataset:
        """The data set that is read."""
        return self._dataset

    @property
    def element_spec(self) -> Any:
        """The shapes and types of an element."""
        return self._dataset.element_spec

    def get_next(self) -> Any:
        """The next element; at the end an `OutOfRangeError`, as TensorFlow's iterators raise."""
        return next_or_error(self)

    def get_next_as_optional(self) -> Optional:
        """The next element if there is one, without an exception at the end."""
        return next_as_optional(self)

    def get_state(self) -> dict[str, Any]:
        """The position in the data set, to be kept and given to `set_state`.

        Returns:
            Numbers, lists, dicts, and the elements that wait in shuffle buffers; it can be
            pickled. Among arrays in memory a position is a number. Seeds that nobody gave are
            in it, so that another process goes on in the same order.
        """
        refuse_if_read(self._is_read)
        if self._waiting:
            return before(self._waiting)
        return noted([self._dataset], self._epoch, self._feed.get_state())

    def begin_pass(self, epoch: int) -> None:
        """Go to the start of pass `epoch`; later passes count from it."""
        self._epoch = self._dataset.epochs.next(after=epoch)
        self._feed = Feed(self._dataset.prepared(), (epoch,))
        self._is_read = False
        self._waiting: list[tuple[Any, Any]] = []

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to a position; later passes count from its epoch, in its order.

        Args:
            state: The result of `get_state` of an iterator over an equal data set.

        Raises:
            UsageError: If it is of another kind, or of another pipeline.
        """
        self.begin_pass(resumed([self._dataset], state))
        self._feed.set_state(state["position"])

    def hand_over(self) -> Any:
        """The position, from which `fit` reads on with another iterator; this one ends."""
        position, self._is_read = self.get_state(), True
        return position

    def host_batches(self) -> Iterator[Any]:
        """The rest of this pass, as `fit` reads it; a whole epoch at each later call.

        From then on the iterator is for `fit` alone, which reads ahead of what it computes.
        """
        if self._is_read:
            return self._dataset.host_batches()
        if self._waiting:
            self.set_state(self.get_state())
        self._is_read = True
        return read_ahead(batches_of(self._feed), _AHEAD_OF_FIT)

    @property
    def num_batches(self) -> None:
        return None  # the rest is of unknown length

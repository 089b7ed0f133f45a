"""Methods of `Dataset` that choose, order and batch elements."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from replicax._core.errors import UsageError, checks_types
from replicax.data._derive import chosen_seed, dataset_node, derived, whole
from replicax.data._nodes.batch import Batch, PaddedBatch, Rebatch, Unbatch, Window
from replicax.data._nodes.cache import Cache, FileCache
from replicax.data._nodes.mix import Concatenate, Zip
from replicax.data._nodes.select import Repeat, Shard, ShardHint, Shuffle, Skip, Take
from replicax.data._nodes.sources import Range
from replicax.data._options import SHARD_HINT

if TYPE_CHECKING:
    from replicax.data._dataset import Dataset
    from replicax.data._node import Node


class Selection:
    """Transformations that hand on elements as they are."""

    node: Node

    @checks_types
    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Dataset:
        """Random order, from a buffer of elements.

        In memory the buffer holds row numbers, so one as large as the data set costs little.

        **Differs from TF:** the same seed gives another order.

        Args:
            buffer_size: The elements that the next one is drawn from; at least as many as there
                are for a uniformly random order.
            seed: The seed of the order; None takes one from NumPy's global generator.
            reshuffle_each_iteration: Whether each epoch, and each turn of a `repeat` after it,
                has an order of its own.

        Example:
            >>> import replicax as rx
            >>> dataset = rx.data.Dataset.range(100).shuffle(100, seed=1)
            >>> first, second = list(dataset), list(dataset)
            >>> first == second, sorted(first) == sorted(second)
            (False, True)
        """
        size = whole("buffer_size", buffer_size, least=1)
        drawn = chosen_seed(seed)
        again = reshuffle_each_iteration is not False
        return derived(self, Shuffle(self.node, size, *drawn, again))

    def repeat(self, count: int | None = None) -> Dataset:
        """The elements `count` times.

        Args:
            count: The number of passes; None or -1 repeats without end.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.range(2).repeat(2)]
            [0, 1, 0, 1]
        """
        times = -1 if count is None else whole("count", count, least=-1)
        return derived(self, Repeat(self.node, times))

    def take(self, count: int) -> Dataset:
        """The first elements.

        Args:
            count: The number of elements; -1 for all.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.range(5).take(2)]
            [0, 1]
        """
        return derived(self, Take(self.node, whole("count", count, least=-1)))

    def skip(self, count: int) -> Dataset:
        """The elements after the first.

        Args:
            count: The number of elements to leave out; -1 for all.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.range(5).skip(3)]
            [3, 4]
        """
        return derived(self, Skip(self.node, whole("count", count, least=-1)))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Every `num_shards`-th element, from number `index`.

        Args:
            num_shards: How many shards there are, or `experimental.SHARD_HINT`, which a
                strategy replaces by its workers under `AutoShardPolicy.HINT`.
            index: Which of them, or `experimental.SHARD_HINT`.

        Raises:
            UsageError: If `index` is not below `num_shards`.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.range(7).shard(3, 1)]
            [1, 4]
        """
        if num_shards == SHARD_HINT and index == SHARD_HINT:
            return derived(self, ShardHint(self.node))
        shards = whole("num_shards", num_shards, least=1)
        number = whole("index", index, least=0)
        if number >= shards:
            raise UsageError.of("index", f"from 0 to {shards - 1}", index)
        return derived(self, Shard(self.node, shards, number))

    def concatenate(self, dataset: Dataset) -> Dataset:
        """The elements of this data set, then the elements of another.

        Args:
            dataset: A data set with elements of the same kind.

        Example:
            >>> import replicax as rx
            >>> both = rx.data.Dataset.range(2).concatenate(rx.data.Dataset.range(7, 9))
            >>> [int(n) for n in both]
            [0, 1, 7, 8]
        """
        return derived(self, Concatenate((self.node, dataset_node(dataset, "concatenate"))))

    @checks_types
    def enumerate(self, start: int = 0) -> Dataset:
        """Pairs of a number and an element.

        Args:
            start: The first number.

        Example:
            >>> import replicax as rx
            >>> letters = rx.data.Dataset.from_tensor_slices(["a", "b"])
            >>> [(int(number), letter) for number, letter in letters.enumerate(5)]
            [(5, 'a'), (6, 'b')]
        """
        numbers = Range(int(start), 1, None, np.dtype(np.int64))
        return derived(self, Zip((numbers, self.node), jax.tree.structure((0, 0))))

    def cache(self, filename: str | bytes | os.PathLike[str] = "") -> Dataset:
        """Keep the elements of the first complete pass for later passes.

        Args:
            filename: The folder for them; empty keeps them in memory. What a complete pass wrote
                is read again by later programs, whatever the data set before it is then.

        Example:
            >>> import replicax as rx
            >>> calls = []
            >>> dataset = rx.data.Dataset.range(2).map(lambda x: calls.append(x) or x).cache()
            >>> len(list(dataset)) + len(list(dataset)), len(calls)
            (4, 2)
        """
        name = np.asarray(filename, object).item()
        if not isinstance(name, str | bytes | os.PathLike):
            raise UsageError.of("filename", "a path", filename)
        folder = os.fsdecode(name)
        return derived(self, FileCache(self.node, folder) if folder else Cache(self.node))


class Batching:
    """Transformations between elements and batches."""

    node: Node

    @checks_types
    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Stack consecutive elements.

        Rows of arrays in memory are fetched in one gather for the whole batch.

        Args:
            batch_size: Elements in a batch.
            drop_remainder: Whether a last batch of fewer is left out.
            num_parallel_calls: Accepted for tf.data programs; a gather needs no threads.
            deterministic: Accepted for tf.data programs.

        Raises:
            UsageError: When it is read, if elements differ in shape.

        Example:
            >>> import replicax as rx
            >>> [b.tolist() for b in rx.data.Dataset.range(5).batch(2)]
            [[0, 1], [2, 3], [4]]
        """
        size = whole("batch_size", batch_size, least=1)
        return derived(self, Batch(self.node, size, bool(drop_remainder)))

    @checks_types
    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Stack elements of different shapes, padded at their ends.

        Args:
            batch_size: Elements in a batch.
            padded_shapes: A shape, or a nest of shapes like an element; None or -1 for an axis,
                or for all, fills up to the longest of the batch.
            padding_values: A value, or a nest of them; None for zeros and empty strings.
            drop_remainder: Whether a last batch of fewer is left out.

        Raises:
            UsageError: When it is read, if an element is larger than `padded_shapes`.

        Example:
            >>> import numpy as np
            >>> import replicax as rx
            >>> rows = rx.data.Dataset.from_generator(lambda: [np.ones(1), np.ones(3)])
            >>> next(iter(rows.padded_batch(2, padding_values=-1))).tolist()
            [[1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]
        """
        size = whole("batch_size", batch_size, least=1)
        shapes = jax.tree.map(lambda n: n.tolist() if hasattr(n, "tolist") else n, padded_shapes)
        node = PaddedBatch(self.node, size, bool(drop_remainder), shapes, padding_values)
        return derived(self, node)

    def unbatch(self) -> Dataset:
        """The rows of batches, one by one.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.range(3).batch(2).unbatch()]
            [0, 1, 2]
        """
        return derived(self, Unbatch(self.node))

    @checks_types
    def rebatch(self, batch_size: int | Sequence[int], drop_remainder: bool = False) -> Dataset:
        """The rows of batches in batches of another size, without taking them apart.

        Args:
            batch_size: Rows of a batch, or several numbers, used in turn.
            drop_remainder: Whether a last batch of fewer rows is left out.

        Example:
            >>> import replicax as rx
            >>> [b.tolist() for b in rx.data.Dataset.range(6).batch(4).rebatch([1, 2])]
            [[0], [1, 2], [3], [4, 5]]
        """
        given = np.atleast_1d(batch_size).tolist()
        sizes = tuple(whole("batch_size", size, least=1) for size in given)
        whole("len(batch_size)", len(sizes), least=1)
        return derived(self, Rebatch(self.node, sizes, bool(drop_remainder)))

    @checks_types
    def window(
        self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False
    ) -> Dataset:
        """Data sets of neighbouring elements.

        Args:
            size: Elements in a window.
            shift: Distance between the starts of windows, in elements; None for `size`.
            stride: Distance between the elements of a window.
            drop_remainder: Whether windows of fewer elements are left out.

        Returns:
            A data set of data sets; of nests of data sets, if the elements are nests.

        Example:
            >>> import replicax as rx
            >>> windows = rx.data.Dataset.range(5).window(3, shift=1, drop_remainder=True)
            >>> [b.tolist() for b in windows.flat_map(lambda window: window.batch(3))]
            [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        length = whole("size", size, least=1)
        step = length if shift is None else whole("shift", shift, least=1)
        apart = whole("stride", stride, least=1)
        return derived(
            self, Window(self.node, length, step, apart, bool(drop_remainder), type(self))
        )

"""Methods of `Dataset` that choose and order elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax.data._derive import chosen_seed, dataset_node, derived, whole
from replicax.data._nodes.cache import Cache
from replicax.data._nodes.mix import Concatenate, Zip
from replicax.data._nodes.repeat import Repeat
from replicax.data._nodes.saved import FileCache
from replicax.data._nodes.select import Shard, ShardHint, Skip, Take
from replicax.data._nodes.shuffle import Shuffle
from replicax.data._nodes.sources import Range
from replicax.data._options import SHARD_HINT

if TYPE_CHECKING:
    from replicax.data._dataset import Dataset
    from replicax.data._node import Node


class Selection:
    """Transformations that hand on elements as they are."""

    node: Node

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
        """The elements of this data set, then those of another.

        Args:
            dataset: A data set with elements of the same kind.

        Example:
            >>> import replicax as rx
            >>> both = rx.data.Dataset.range(2).concatenate(rx.data.Dataset.range(7, 9))
            >>> [int(n) for n in both]
            [0, 1, 7, 8]
        """
        return derived(self, Concatenate((self.node, dataset_node(dataset, "concatenate"))))

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

    def cache(self, filename: str = "") -> Dataset:
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
        return derived(self, FileCache(self.node, str(filename)) if filename else Cache(self.node))

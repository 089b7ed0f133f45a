"""Methods of `Dataset` that make batches of elements, and elements of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replicax.data._derive import derived, whole
from replicax.data._nodes.batch import Batch, PaddedBatch, Rebatch, Unbatch
from replicax.data._nodes.window import Window

if TYPE_CHECKING:
    from replicax.data._dataset import Dataset
    from replicax.data._node import Node


class Batching:
    """Transformations between elements and batches."""

    node: Node

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
        node = PaddedBatch(self.node, size, padded_shapes, padding_values, bool(drop_remainder))
        return derived(self, node)

    def unbatch(self) -> Dataset:
        """The rows of batches, one by one.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.range(3).batch(2).unbatch()]
            [0, 1, 2]
        """
        return derived(self, Unbatch(self.node))

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
        given = batch_size if isinstance(batch_size, Sequence) else [batch_size]
        sizes = tuple(whole("batch_size", size, least=1) for size in given)
        whole("len(batch_size)", len(sizes), least=1)
        return derived(self, Rebatch(self.node, sizes, bool(drop_remainder)))

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

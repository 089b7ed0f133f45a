"""Elements to batches and back, and windows: data sets of neighbouring elements."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax.data._node import (
    INFINITE_CARDINALITY,
    Handles,
    Node,
    OneByOne,
    OverElements,
    Path,
    filtered,
    grouped,
)
from replicax.data._nodes.sources import Elements
from replicax.data._spec import (
    ArraySpec,
    RowBuffer,
    batched,
    columns,
    own_copy,
    split_rows,
)


@final
class BatchCursor(OneByOne, OverElements):
    """Groups of elements, stacked."""

    def make(self) -> Any:
        batch, rows = self._input.stacked(self._node.size)
        if not rows or (self._node.drop_remainder and rows < self._node.size):
            raise StopIteration
        return batch

    def skip(self, count: int) -> None:
        # Row numbers are skipped without fetching the rows.
        if self._node.input.table is None:
            super().skip(count)
        else:
            self._input.skip(count * self._node.size)


@dataclass(frozen=True, eq=False)
class Grouped(Node):
    """`size` elements at a time; the last group may be smaller."""

    input: Node
    size: int
    drop_remainder: bool = False

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        return grouped(size, self.size, drop_remainder=self.drop_remainder)

    @property
    def spec(self) -> Any:
        return batched(self.row_spec, self.size if self.drop_remainder else None)

    @property
    def row_spec(self) -> Any:
        """The spec of a row of a group."""
        return self.input.spec

    @property
    def batch_size(self) -> int:
        return self.size


@dataclass(frozen=True, eq=False)
class Batch(Grouped):
    """Elements stacked."""

    cursor = BatchCursor


@final
class PaddedBatchCursor(OneByOne, OverElements):
    """Groups of elements, padded to one shape."""

    def make(self) -> Any:
        node = self._node
        elements = self._input.elements(node.size)
        if not elements or (node.drop_remainder and len(elements) < node.size):
            raise StopIteration
        tree, found = columns(elements)
        shapes, fills = _per_leaf(node.shapes, tree), _per_leaf(node.values, tree)
        return tree.unflatten(
            [_padded(c, s, v) for c, s, v in zip(found, shapes, fills, strict=True)]
        )


def _per_leaf(given: Any, tree: Any) -> list[Any]:
    """One entry for each leaf of `tree`, from a nest of entries or from one for all."""
    try:
        return tree.flatten_up_to(given)
    except ValueError:  # not such a nest
        return [given] * tree.num_leaves


def _padded(leaves: Sequence[Any], shape: Any, value: Any) -> np.ndarray:
    arrays = [
        np.asarray(leaf, object if isinstance(leaf, str | bytes) else None) for leaf in leaves
    ]
    target = _target(arrays, shape)
    if all(array.shape == target for array in arrays):
        return np.stack(arrays)
    dtype = np.result_type(*{array.dtype for array in arrays})
    fill = _filling(arrays, dtype) if value is None else value
    batch = np.full((len(arrays), *target), fill, dtype)
    for row, array in enumerate(arrays):
        batch[(row, *[slice(n) for n in array.shape])] = array
    return batch


def _target(arrays: Sequence[np.ndarray], wanted: Any) -> tuple[int, ...]:
    """The shape to which all arrays are padded."""
    ranks = {array.ndim for array in arrays}
    shape = [None] * max(ranks) if wanted is None else wanted
    if not _is_shape(shape) or ranks != {len(shape)}:
        raise UsageError(
            f"`padded_shapes` has {wanted} for elements with "
            f"{' or '.join(map(str, sorted(ranks)))} axes. Pass a shape with as many axes, or a "
            "nest of shapes like an element."
        )
    longest = [max(sizes) for sizes in zip(*[array.shape for array in arrays], strict=True)]
    target = tuple(
        most if want in (None, -1) else want for most, want in zip(longest, shape, strict=True)
    )
    if any(most > want for most, want in zip(longest, target, strict=True)):
        raise UsageError(
            f"An element of shape {tuple(longest)} is longer than its padded shape {target}. Raise "
            "`padded_shapes`, or use None for the longest of each batch."
        )
    return target


def _is_shape(value: Any) -> bool:
    return isinstance(value, Sequence) and all(n is None or isinstance(n, int) for n in value)


def _filling(arrays: Sequence[np.ndarray], dtype: np.dtype) -> Any:
    """The padding: zero, or an empty text."""
    texts = (text for array in arrays for text in array.flat) if dtype.hasobject else ()
    return next((type(text)() for text in texts), np.zeros((), dtype)[()])


@dataclass(frozen=True, eq=False)
class PaddedBatch(Grouped):
    """Elements padded to `shapes` or to the longest of the batch, and stacked."""

    cursor = PaddedBatchCursor
    shapes: Any = None
    values: Any = None

    @property
    def row_spec(self) -> Any:
        leaves, tree = jax.tree.flatten(self.input.spec)
        pairs = zip(leaves, _per_leaf(self.shapes, tree), strict=True)
        return tree.unflatten(
            [ArraySpec(_filled_up(leaf.shape, shape), leaf.dtype) for leaf, shape in pairs]
        )


def _filled_up(shape: Any, wanted: Any) -> tuple[int | None, ...] | None:
    if wanted is None:
        return shape and (None,) * len(shape)
    return tuple(None if n in (None, -1) else n for n in wanted)


@final
class UnbatchCursor(OverElements):
    """The rows of batches."""

    def __init__(self, node: Unbatch, path: Path) -> None:
        super().__init__(node, path)
        self._left: deque[Any] = deque()
        self._is_noted = False  # whether a position holds waiting rows, which must not change

    def read(self, count: int) -> Handles:
        while len(self._left) < count:
            batches = self._input.elements(1)
            if not batches:
                break
            self._left += split_rows(batches[0])
        rows = [self._left.popleft() for _ in range(min(count, len(self._left)))]
        return own_copy(rows) if self._is_noted else rows

    def get_state(self) -> Any:
        self._is_noted = True
        return {"left": list(self._left), "input": self._input.get_state()}

    def set_state(self, state: Any) -> None:
        self._is_noted = True
        self._left = deque(state["left"])
        self._input.set_state(state["input"])


@dataclass(frozen=True, eq=False)
class Unbatch(Node):
    """The rows of batches, one by one."""

    cursor = UnbatchCursor

    input: Node

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        return size if size == INFINITE_CARDINALITY else filtered(size)

    @property
    def spec(self) -> Any:
        return jax.tree.map(lambda leaf: leaf.unbatched(), self.input.spec)


@final
class RebatchCursor(OneByOne, OverElements):
    """Rows of batches in groups of other sizes, taken in turn."""

    def __init__(self, node: Rebatch, path: Path) -> None:
        super().__init__(node, path)
        self._buffer = RowBuffer()
        self._turn = 0

    def make(self) -> Any:
        size = self._node.sizes[self._turn % len(self._node.sizes)]
        while self._buffer.rows < size:
            batches = self._input.elements(1)
            if not batches:
                break
            self._buffer.push(batches[0])
        rows = self._buffer.rows
        if not rows or (rows < size and self._node.drop_remainder):
            raise StopIteration
        self._turn += 1
        return self._buffer.pull(size)

    def get_state(self) -> Any:
        left = self._buffer.contents()
        return {"turn": self._turn, "left": left, "input": self._input.get_state()}

    def set_state(self, state: Any) -> None:
        self._turn, self._buffer = state["turn"], RowBuffer(state["left"])
        self._input.set_state(state["input"])


@dataclass(frozen=True, eq=False)
class Rebatch(Node):
    """The rows of batches in batches of other sizes."""

    cursor = RebatchCursor

    input: Node
    sizes: tuple[int, ...]
    drop_remainder: bool = False

    @property
    def cardinality(self) -> int:
        return filtered(self.input.cardinality)

    @property
    def spec(self) -> Any:
        rows = self.sizes[0] if len(self.sizes) == 1 and self.drop_remainder else None
        return batched(Unbatch(self.input).spec, rows)

    @property
    def batch_size(self) -> int | None:
        return self.sizes[0] if len(self.sizes) == 1 else None


@final
class WindowCursor(OneByOne, OverElements):
    """Keeps the elements that the next window may need."""

    keeps = ("kept",)

    def __init__(self, node: Window, path: Path) -> None:
        super().__init__(node, path)
        self._kept: list[Any] = []

    def make(self) -> Any:
        node = self._node
        reach = (node.size - 1) * node.stride + 1
        if len(self._kept) < reach:
            self._kept += self._input.elements(reach - len(self._kept))
        members = self._kept[: reach : node.stride]
        if not members or (node.drop_remainder and len(members) < node.size):
            raise StopIteration
        self._kept, missing = self._kept[node.shift :], node.shift - len(self._kept)
        if missing > 0:
            self._input.skip(missing)
        return self._as_data_sets(members)

    def _as_data_sets(self, members: list[Any]) -> Any:
        tree, found = columns(members)
        return tree.unflatten([self._node.wrap(Elements(list(column))) for column in found])


@dataclass(frozen=True, eq=False)
class Window(Node):
    """`size` elements, `stride` apart; the next window begins `shift` elements later.

    `wrap` makes a data set of a node: the elements of a window are one, or a nest of them.
    """

    cursor = WindowCursor

    input: Node
    size: int
    shift: int
    stride: int
    drop_remainder: bool
    wrap: Callable[[Node], Any]

    @property
    def cardinality(self) -> int:
        total = self.input.cardinality
        if total < 0:
            return total
        if not self.drop_remainder:
            return grouped(total, self.shift, drop_remainder=False)
        reach = (self.size - 1) * self.stride + 1
        return max(0, (total - reach) // self.shift + 1)

"""The shapes and types of elements, and how elements are stacked into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax.data._host import TensorShape


class Composite:
    """A tensor of several arrays, which do not have one row for each of its rows.

    It is a pytree, so that functions are called with it; data sets take it for a single value.
    """

    dense: ClassVar[str]
    """Advice on how to make an array of it, as a sentence."""

    @property
    def spec(self) -> Any:
        """Its `ArraySpec`, or a spec of another class."""
        raise NotImplementedError  # each kind has its own

    def take_rows(self, numbers: Any) -> Any:
        """The rows with these numbers."""
        raise self.refused("cut into rows")

    def unstacked(self) -> list[Any]:
        """Its rows; `stacked` is the inverse."""
        raise self.refused("cut into rows")

    @classmethod
    def joined(cls, batches: Sequence[Any]) -> Any:
        """One tensor with the rows of all batches."""
        raise cls.refused("cut into rows")

    @classmethod
    def stacked(cls, rows: Sequence[Any]) -> Any:
        """A batch of rows.

        Raises:
            UsageError: Always, unless a class can.
        """
        raise cls.refused("the element of a batch")

    @classmethod
    def refused(cls, where: str) -> UsageError:
        """The error of such a tensor where only arrays may be."""
        return UsageError(f"A {cls.__name__} cannot be {where}. {cls.dense}")


def is_composite(value: Any) -> bool:
    """Whether this is a sparse or ragged tensor."""
    return isinstance(value, Composite)


# The kind of NumPy's fixed-width text → the type of text here
_TEXT = {"U": str, "S": bytes}


@dataclass(frozen=True)
class ArraySpec:
    """The shape and type of one array of an element; the counterpart of `tf.TensorSpec`.

    Args:
        shape: Its axes; None for an axis that may vary, and for the whole if the rank may.
        dtype: A NumPy dtype, or `str` or `bytes`.
        name: Kept, and of no consequence.

    Example:
        >>> import replicax as rx
        >>> rx.data.Dataset.range(3).batch(2).element_spec
        ArraySpec(shape=(None,), dtype=int64)
    """

    shape: tuple[int | None, ...] | None
    dtype: Any = np.float32
    name: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        # A shape of unknown rank of TensorFlow's own is not None.
        shape = TensorShape(None if getattr(self.shape, "rank", 0) is None else self.shape)
        if any(isinstance(n, str | float) or (isinstance(n, int) and n < 0) for n in shape):
            raise UsageError.of("shape", "sizes of at least 0, None for any, or None", self.shape)
        object.__setattr__(self, "shape", None if shape.rank is None else tuple(shape))
        # TensorFlow's type for bytes is object in NumPy.
        own = getattr(self.dtype, "as_numpy_dtype", None)
        dtype = bytes if own is object else own or self.dtype
        kept = dtype if dtype in (str, bytes) else np.dtype(dtype)
        object.__setattr__(self, "dtype", _TEXT.get(getattr(kept, "kind", ""), kept))

    @classmethod
    def from_tensor(cls, tensor: Any, name: str | None = None) -> ArraySpec:
        """The spec with the shape and type of this array."""
        found = _leaf_spec(tensor)
        return cls(found.shape, found.dtype, name)

    def is_compatible_with(self, spec_or_value: Any) -> bool:
        """Whether an array, or another spec, fits this one."""
        other = _leaf_spec(spec_or_value)
        if type(self) is not type(other):
            return False
        return self.dtype == other.dtype and TensorShape(self.shape).is_compatible_with(other.shape)

    @property
    def value_type(self) -> type:
        """The class of the values."""
        return jax.Array

    def batched(self, rows: int | None) -> Self:
        """The spec of a batch of `rows` of these."""
        return replace(self, shape=None if self.shape is None else (rows, *self.shape), name=None)

    def unbatched(self) -> Self:
        """The spec of a row."""
        return replace(self, shape=self.shape and self.shape[1:], name=None)

    def __repr__(self) -> str:
        name = self.dtype.__name__ if isinstance(self.dtype, type) else self.dtype.name
        return f"{type(self).__name__}(shape={self.shape}, dtype={name})"


def spec_of(element: Any) -> Any:
    """The `ArraySpec` of each array of an element."""
    return jax.tree.map(_leaf_spec, element, is_leaf=is_composite)


def _leaf_spec(leaf: Any) -> Any:
    if isinstance(leaf, ArraySpec):
        return leaf
    if isinstance(leaf, str | bytes):
        return ArraySpec((), _kind_of(leaf))
    if isinstance(leaf, Composite):
        return leaf.spec
    if hasattr(leaf, "element_spec"):  # a window: a data set in a data set
        return leaf.element_spec
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    if array.dtype == object and array.size:
        return ArraySpec(array.shape, _kind_of(array.flat[0]))
    return ArraySpec(array.shape, array.dtype)


def _kind_of(value: Any) -> type:
    return next((text for text in (str, bytes) if isinstance(value, text)), object)


def common_spec(specs: Sequence[Any]) -> Any:
    """The spec that elements of any of these specs have."""
    tree, found = columns(specs)
    return tree.unflatten([_common(leaves) for leaves in found])


def _common(specs: Sequence[ArraySpec]) -> ArraySpec:
    kinds = {spec.dtype for spec in specs}
    text = len(kinds) > 1 and kinds & {str, bytes}
    dtype = object if text else kinds.pop() if len(kinds) == 1 else np.result_type(*kinds)
    shapes = {spec.shape for spec in specs}
    if None in shapes or len({len(shape or ()) for shape in shapes}) > 1:
        return ArraySpec(None, dtype)
    axes = zip(*[shape or () for shape in shapes], strict=True)
    shape = tuple(axis[0] if len(set(axis)) == 1 else None for axis in axes)
    return replace(specs[0], shape=shape, dtype=dtype, name=None)


def batched(spec: Any, rows: int | None) -> Any:
    """The spec of a batch of elements of this spec."""
    return jax.tree.map(lambda leaf: leaf.batched(rows), spec)


def stack(elements: Sequence[Any]) -> Any:
    """One batch of these elements."""
    return _combined(elements, _stack_leaves)


def joined(batches: Sequence[Any]) -> Any:
    """One batch with the rows of all batches."""
    return batches[0] if len(batches) == 1 else _combined(batches, np.concatenate)


def columns(elements: Sequence[Any]) -> tuple[Any, list[tuple[Any, ...]]]:
    """The structure of these elements, and the values in each place of it."""
    # Only if such tensors exist: `is_leaf` is called for every part of every element.
    mixed = bool(elements) and composite_in(elements[0]) is not None
    leaves, whole = jax.tree.flatten(list(elements), is_leaf=is_composite if mixed else None)
    trees = whole.children()
    if any(tree != trees[0] for tree in trees):
        raise _unlike(elements)
    width = trees[0].num_leaves
    return trees[0], [tuple(leaves[place::width]) for place in range(width)]


def composite_in(nest: Any) -> Composite | None:
    """The first sparse or ragged tensor in a nest."""
    return next(filter(is_composite, jax.tree.leaves(nest, is_leaf=is_composite)), None)


def _combined(elements: Sequence[Any], combine: Callable[[Sequence[Any]], Any]) -> Any:
    tree, found = columns(elements)
    if any(isinstance(leaves[0], Composite) for leaves in found):
        return tree.unflatten([_stacked(leaves, combine) for leaves in found])
    try:
        return tree.unflatten([combine(leaves) for leaves in found])
    except (ValueError, TypeError) as error:
        raise _unlike(elements) from error


def _stacked(leaves: Sequence[Any], combine: Callable[[Sequence[Any]], Any]) -> Any:
    if not isinstance(leaves[0], Composite):
        return combine(leaves)
    whole = leaves[0]
    return whole.stacked(leaves) if combine is _stack_leaves else whole.joined(leaves)


def _unlike(elements: Sequence[Any]) -> UsageError:
    seen = sorted({str(spec_of(element)) for element in elements})
    return UsageError(
        "Cannot stack elements of different structures or shapes: "
        f"{'; '.join(seen[:4])}{'; …' if len(seen) > 4 else ''}. Bring them to one shape with "
        "`map`, or use `padded_batch`."
    )


# NumPy's scalars that their type describes fully; durations also have a unit.
_NUMBERS: tuple[type, ...] = (
    np.bool,
    np.inexact,
    np.unsignedinteger,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
)


def _stack_leaves(leaves: Sequence[Any]) -> np.ndarray:
    text = isinstance(leaves[0], str | bytes)
    if text and all(isinstance(leaf, str | bytes) for leaf in leaves):
        return np.array(leaves, dtype=object)
    types = {*map(type, leaves)}
    if len(types) == 1 and issubclass(kind := types.pop(), _NUMBERS):
        return np.fromiter(leaves, kind, len(leaves))  # in a third of the time of `np.array`
    arrays = [np.asarray(leaf) for leaf in leaves]
    shape = arrays[0].shape
    if not shape:
        array = np.array(leaves)
    elif all(other.shape == shape for other in arrays):  # in half the time of `np.stack`
        array = np.concatenate(arrays).reshape(len(arrays), *shape)
    else:
        array = np.stack(arrays)  # refuses different shapes
    if array.dtype.kind in _TEXT:
        raise TypeError("text beside numbers")
    return array


def num_rows(batch: Any) -> int:
    """The rows of a batch: the size of the first axis of its arrays."""
    shapes = [np.shape(leaf) for leaf in parts_of(batch)]
    if not shapes or any(not shape for shape in shapes) or len({s[0] for s in shapes}) > 1:
        raise UsageError(
            f"Cannot divide a batch of shapes {shapes} into rows. Its arrays need a first axis of "
            "one size: call `batch`, and check the results of the functions."
        )
    return shapes[0][0]


def parts_of(batch: Any) -> list[Any]:
    """The arrays of a batch, and the sparse and ragged tensors, each as one."""
    return jax.tree.leaves(batch, is_leaf=is_composite)


def refuse_composites(batch: Any) -> None:
    """Raise an error if there is a sparse or ragged tensor in what is cut into rows."""
    if (found := composite_in(batch)) is not None:
        raise found.refused("cut into rows")


def own_copy(batch: Any) -> Any:
    """A batch in memory of its own: its maker may reuse the old memory for the next one."""
    return jax.tree.map(lambda a: a.copy() if isinstance(a, np.ndarray) else a, batch)


def split_rows(batch: Any) -> list[Any]:
    """The rows of a batch, as views of it in host memory."""
    leaves, tree = jax.tree.flatten(batch, is_leaf=is_composite)
    leaves = [leaf.unstacked() if is_composite(leaf) else np.asarray(leaf) for leaf in leaves]
    num_rows(batch)
    if tree == jax.tree.structure(0):
        return list(leaves[0])
    columns_by_row = zip(*leaves, strict=True)
    if tree == jax.tree.structure((0,) * len(leaves)):
        return list(columns_by_row)
    return [tree.unflatten(row) for row in columns_by_row]


class RowBuffer:
    """Batches in, rows out in any other size."""

    def __init__(self, batches: Sequence[Any] = ()) -> None:
        self._batches = list(batches)
        self.rows = sum(num_rows(batch) for batch in batches)

    def push(self, batch: Any) -> None:
        """Put a batch at the end."""
        self._batches.append(batch)
        self.rows += num_rows(batch)

    def pull(self, rows: int) -> Any:
        """The first `rows` rows, or all of them; it must hold at least one batch."""
        taken, missing = [], min(rows, self.rows)
        self.rows -= missing
        while True:
            batch = self._batches.pop(0)
            here = num_rows(batch)
            if here > missing:
                self._batches.insert(0, rows_of(batch, missing, here))
                batch = rows_of(batch, 0, missing)
            taken.append(batch)
            missing -= min(here, missing)
            if not missing:
                break
        return joined(taken)

    def contents(self) -> list[Any]:
        """The batches that are left."""
        return list(self._batches)


def rows_of(batch: Any, start: int, stop: int) -> Any:
    """Some rows of a batch; of arrays as views of them."""

    def rows(leaf: Any) -> Any:
        if is_composite(leaf):  # bounds end at the last row, as slices of arrays do
            return leaf.take_rows(range(leaf.shape[0])[start:stop])
        return leaf[start:stop]

    return jax.tree.map(rows, batch, is_leaf=is_composite)


def rows_at(batch: Any, numbers: np.ndarray) -> Any:
    """The rows of a batch with these numbers."""

    def rows(leaf: Any) -> Any:
        if is_composite(leaf):
            return leaf.take_rows(numbers)
        # `take` is quicker, but copies the whole of a non-contiguous array.
        return leaf.take(numbers, axis=0) if leaf.flags.c_contiguous else leaf[numbers]

    return jax.tree.map(rows, batch, is_leaf=is_composite)


def read_only(element: Any) -> Any:
    """The element with arrays that a later function cannot change in place."""
    return jax.tree.map(_locked, element)


def _locked(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    view = leaf.view()
    view.flags.writeable = False
    return view

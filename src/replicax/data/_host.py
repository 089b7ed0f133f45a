"""Arrays and shapes for a program that was written for TensorFlow: `numpy()`, `TensorShape`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any, final

import numpy as np

from replicax._core.errors import UsageError


@final
class TensorShape(tuple[Any, ...]):
    """A tuple of the sizes of the axes, None for one that may vary; taken wherever shapes are.

    Args:
        dims: The sizes, or one, or None for a shape of which nothing is known.

    Example:
        >>> import replicax.tf as tf
        >>> shape = tf.TensorShape([None, 3])
        >>> shape.rank, shape.as_list(), shape.is_compatible_with([2, 3])
        (2, [None, 3], True)
    """

    _known: bool

    def __new__(cls, dims: Iterable[Any] | int | None) -> TensorShape:
        if isinstance(dims, TensorShape) and not dims._known:
            dims = None
        # A single size is the shape of a vector.
        axes = [dims] if hasattr(dims, "__index__") and not hasattr(dims, "__len__") else dims
        made = super().__new__(cls, () if axes is None else map(_size, axes))  # pyright: ignore[reportArgumentType]
        made._known = dims is not None
        return made

    @property
    def rank(self) -> int | None:
        """How many axes there are, None if that is not known."""
        return len(self) if self._known else None

    ndims = rank

    @property
    def dims(self) -> list[int | None] | None:
        """The sizes, None if not even their number is known."""
        return list(self) if self._known else None

    def as_list(self) -> list[int | None]:
        """The sizes as a list.

        Raises:
            UsageError: If their number is not known.
        """
        if not self._known:
            raise UsageError("Cannot list a shape of unknown rank. Ask `rank` first.")
        return list(self)

    def num_elements(self) -> int | None:
        """How many elements an array of this shape has, None if an axis is not known."""
        return math.prod(self) if self.is_fully_defined() else None

    def is_fully_defined(self) -> bool:
        """Whether every size is known."""
        return self._known and None not in tuple(self)

    def is_compatible_with(self, other: Any) -> bool:
        """Whether an array can have both shapes."""
        other = TensorShape(other)
        if not (self._known and other._known):
            return True
        pairs = zip(self, other, strict=False)
        return len(self) == len(other) and all(a == b or None in (a, b) for a, b in pairs)

    def assert_is_compatible_with(self, other: Any) -> None:
        """Check that an array can have both shapes.

        Raises:
            UsageError: If not.
        """
        if not self.is_compatible_with(other):
            raise UsageError(
                f"No array has both shapes {self} and {TensorShape(other)}. Make the sizes equal, "
                "or None where one may vary."
            )

    def merge_with(self, other: Any) -> TensorShape:
        """The shape that both shapes imply together."""
        self.assert_is_compatible_with(other)
        other = TensorShape(other)
        if not (self._known and other._known):
            return self if self._known else other
        return TensorShape([a if b is None else b for a, b in zip(self, other, strict=True)])

    def concatenate(self, other: Any) -> TensorShape:
        """The axes of this shape, then the axes of the other."""
        other = TensorShape(other)
        known = self._known and other._known
        return TensorShape([*self, *other] if known else None)

    def __eq__(self, other: object) -> bool:
        if other is None or isinstance(other, TensorShape | tuple | list):
            other = TensorShape(other)
            return self._known == other._known and tuple(self) == tuple(other)
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return TensorShape(found) if isinstance(key, slice) else found

    def __add__(self, other: Any) -> TensorShape:
        return self.concatenate(other)

    def __radd__(self, other: Any) -> TensorShape:
        return TensorShape(other).concatenate(self)

    def __bool__(self) -> bool:
        return self._known

    def __reduce__(self) -> Any:
        return TensorShape, (self.dims,)

    def __str__(self) -> str:
        return (
            repr(self.as_list()).replace("[", "(").replace("]", ")") if self._known else "<unknown>"
        )

    def __repr__(self) -> str:
        return f"TensorShape({self.dims})"


def _size(size: Any) -> Any:
    return int(size) if hasattr(size, "__index__") else size


@final
class ArrayShape(tuple[int, ...]):
    """The shape of an array: a tuple like any other, with the methods of `TensorShape`.

    It is false where there are no axes, as code that is not TensorFlow's expects of a tuple.

    Example:
        >>> from replicax.data._host import ArrayShape
        >>> shape = ArrayShape((2, 3))
        >>> shape == (2, 3), shape.rank, shape[1:].as_list(), shape + [1]
        (True, 2, [3], (2, 3, 1))
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(TensorShape(self), name)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return ArrayShape(found) if isinstance(key, slice) else found

    def __add__(self, other: Any) -> Any:
        return ArrayShape((*self, *other))

    # No `__radd__`: `sizes += shape` would call it first, and the list `sizes` become a tuple.

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)


@functools.lru_cache(maxsize=4096)
def array_shape(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape with these sizes; a plain tuple if one of them is a symbolic size of JAX."""
    known = all(size is None or isinstance(size, int) for size in sizes)
    return ArrayShape(sizes) if known else sizes


class Unchanging(np.ndarray):
    """A NumPy array whose `a += b` makes a new array, as a tensor's does."""

    def _not_in_place(self, other: Any) -> Any:
        return NotImplemented  # Python then computes `a = a + b`; other names keep the old value

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = _not_in_place
    __ipow__ = __imatmul__ = __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = (
        _not_in_place
    )


@final
class HostTensor(Unchanging):
    """A NumPy array with the `numpy()` of TensorFlow's tensors; its rows have it, too.

    Example:
        >>> import numpy as np
        >>> from replicax.data._host import HostTensor
        >>> rows = HostTensor.of(np.array([1.5, 2.5]))
        >>> rows[0].numpy(), rows.numpy()
        (np.float64(1.5), array([1.5, 2.5]))
    """

    @classmethod
    def of(cls, value: Any) -> HostTensor:
        """A view of an array, or an array of one number or text."""
        if isinstance(value, str | bytes):  # NumPy would store it with a fixed width
            text = np.empty((), object)
            text[()] = value
            return text.view(cls)
        return np.asarray(value).view(cls)

    def numpy(self) -> Any:
        """The plain array, without a copy; for one element, the number. Text is `bytes`."""
        plain = self.view(np.ndarray)
        if plain.dtype == object:
            plain = ENCODED(plain)
        return plain[()] if isinstance(plain, np.ndarray) and not plain.ndim else plain

    @property
    def shape(self) -> Any:
        """The sizes of the axes."""
        return array_shape(np.ndarray.shape.__get__(self))

    @shape.setter
    def shape(self, shape: Any) -> None:
        np.ndarray.shape.__set__(self, shape)

    def set_shape(self, shape: Any) -> None:
        """Check that the shape may be this one, in which None stands for any size."""
        TensorShape(shape).assert_is_compatible_with(self.shape)

    def get_shape(self) -> TensorShape:
        """The shape, as a `TensorShape`."""
        return TensorShape(self.shape)

    @property
    def backing_device(self) -> str:
        """Where the values are."""
        return "CPU:0"

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return found if isinstance(found, np.ndarray) else HostTensor.of(found)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray)).replace("array", "HostTensor", 1)

    def __str__(self) -> str:
        return str(self.view(np.ndarray))

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))


# Each text of an array as bytes; other elements as they are.
ENCODED = np.frompyfunc(lambda text: text.encode() if isinstance(text, str) else text, 1, 1)

"""Elements for a program that was written for TensorFlow: arrays with `numpy()`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from replicax.data._shape import TensorShape, array_shape


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
            plain = _ENCODED(plain)
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


def _encoded(text: Any) -> Any:
    return text.encode() if isinstance(text, str) else text


_ENCODED = np.frompyfunc(_encoded, 1, 1)

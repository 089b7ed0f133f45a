"""The common base of sparse and ragged tensors, which are no arrays, and apply functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax.data._host import HostTensor
from replicax.data._spec import Composite
from replicax.tf._calls import axes_of, hosted
from replicax.tf._dtypes import as_dtype
from replicax.tf._tensors import convert_to_tensor

if TYPE_CHECKING:
    from replicax.data._host import TensorShape


class CompositeTensor(Composite):
    """A tensor of several arrays."""

    __array_ufunc__ = None  # so that NumPy leaves operators to us

    def __init__(self, values: Any, ndim: int) -> None:
        self._values, self._ndim = values, ndim

    @property
    def values(self) -> Any:
        """The elements, one after the other."""
        if getattr(self._values, "ndim", self._ndim) != self._ndim:
            raise self.refused("cut into rows")
        return self._values

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self.values.dtype

    @property
    def shape(self) -> TensorShape:
        """The shape of the whole."""
        raise NotImplementedError  # each kind has its own

    def get_shape(self) -> TensorShape:
        """The shape of the whole."""
        return self.shape

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of an array function, of which this is an argument."""
        raise self.refused(f"an argument of `tf.{function.__name__}` here")

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise self.refused("used as an array")

    def __bool__(self) -> NoReturn:
        raise self.refused("a condition")


def elements(values: Any, dtype: Any = None) -> Any:
    """The elements of a tensor, as an array."""
    if isinstance(values, Composite):
        raise values.refused("the elements of another tensor")
    return values if isinstance(values, jax.ShapeDtypeStruct) else convert_to_tensor(values, dtype)


def places(values: Any) -> Any:
    """Integers in host memory, of 64 bits as in TensorFlow; of compiled code what they are."""
    if isinstance(values, Tracer):
        return values
    return HostTensor.of(np.asarray(values, np.int64))


def is_text(values: Any) -> bool:
    """Whether the elements are texts."""
    return getattr(values.dtype, "kind", "") in ("O", "S", "U")


def filling(values: Any, given: Any) -> Any:
    """The value where there is no element: 0, or an empty text."""
    if given is not None:
        return given.item() if hasattr(given, "item") and not isinstance(given, Tracer) else given
    if not is_text(values):
        return 0
    return "" if values.size and isinstance(np.asarray(values).flat[0], str) else b""


def axes_within(rank: int, axis: Any) -> list[int]:
    """Axes of a tensor, all of them by default; in order, from 0 on."""
    given = range(rank) if axis is None else np.atleast_1d(axes_of(axis)).tolist()
    if not all(-rank <= one < rank for one in given):
        raise UsageError(f"`axis` must be from {-rank} to {rank - 1}, got {axis}.")
    return sorted({one % rank for one in given})


def put(whole: Any, where: Any, values: Any, how: str = "set") -> Any:
    """An array with values at places: "set", "add" or "max". One of NumPy is changed."""
    if not isinstance(whole, np.ndarray):
        return getattr(whole.at[where], how)(values)
    if how == "set":
        whole[where] = values
    else:
        {"add": np.add, "max": np.maximum}[how].at(whole, where, values)
    return hosted(whole)


def lowest(kind: Any) -> Any:
    """The lowest number of a type."""
    return -np.inf if as_dtype(kind).is_floating else as_dtype(kind).min


def of_values(op: Callable[..., Any], args: Any, kwargs: Any, first: Any) -> Any:
    """Apply a function to the elements of tensors of one kind; the result is like the first."""

    def plain(value: Any) -> Any:
        return value.values if isinstance(value, type(first)) else value

    return first.with_values(op(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()}))

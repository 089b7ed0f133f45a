"""Tensors: `constant`, `convert_to_tensor`, `Tensor`, `TensorSpec`, `TensorShape`.

A tensor is a `jax.Array`. On import, arrays get `numpy()`, `get_shape()` and `set_shape()`, their
shapes the methods of `TensorShape`, and their operators take lists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.dtypes import canonicalize_dtype

from replicax._core.errors import LeakedTracer, UsageError
from replicax._core.host_calls import is_compiling
from replicax._core.topology import device_name
from replicax._core.tracing import in_pipeline
from replicax._keras import _compat
from replicax.data import ArraySpec
from replicax.data._host import HostTensor, Unchanging, array_shape
from replicax.data._host import TensorShape as TensorShape
from replicax.data._spec import Composite
from replicax.tf._calls import (
    MOST_FOLDED,
    array,
    array_beside,
    array_function,
    check_divisor,
    fitting,
    is_python,
    is_symbolic,
    numpy_dtype,
    of_python,
    static_shape,
)
from replicax.tf._calls import numpy_or_jax as numpy_or_jax

Tensor = jax.Array
TensorSpec = ArraySpec


@final
@dataclass(frozen=True)
class IndexedSlices:
    """Some rows of an array: TensorFlow's gradient of a look-up.

    **Differs from TF:** no gradient is one, since JAX's are whole arrays; `convert_to_tensor`
    makes a whole array of it.
    """

    values: Any
    indices: Any
    dense_shape: Any = None

    def __jax_array__(self) -> Any:
        rows = jnp.zeros(static_shape(self.dense_shape), jnp.asarray(self.values).dtype)
        return rows.at[jnp.asarray(self.indices)].add(jnp.asarray(self.values))


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str | None = "Const") -> Any:
    """An array of numbers, or of text.

    Python's floats become float32 and its integers int32. Inside compiled code it has its value
    already, so that a shape may be made of it.

    **Differs from TF:** 64-bit types are 32 bits wide on JAX unless `jax_enable_x64` is set; text
    is a NumPy array.

    Raises:
        UsageError: If a number does not fit, or the shape.

    Example:
        >>> import replicax.tf as tf
        >>> tf.constant([1, 2]).dtype == tf.int32, tf.constant(7, shape=[2]).numpy().tolist()
        (True, [7, 7])
    """
    found = _as_tensor(value, dtype)
    if shape is None or tuple(found.shape) == static_shape(shape):
        return found
    wanted = static_shape(shape)
    if found.size == 1:
        return _as_tensor(np.broadcast_to(np.asarray(found).ravel()[0], wanted), found.dtype)
    if found.size != int(np.prod(wanted)):
        raise UsageError(
            f"Cannot make a constant of shape {wanted} from {found.size} elements. Correct the "
            "shape."
        )
    return found.reshape(wanted)


def convert_to_tensor(
    value: Any, dtype: Any = None, dtype_hint: Any = None, name: str | None = None
) -> Any:
    """An array of a number, a list, a NumPy array or a variable; arrays stay what they are.

    Raises:
        UsageError: If a number does not fit.
    """
    if dtype is None and dtype_hint is not None and not hasattr(value, "dtype"):
        kinds = (of_python(value).dtype.kind, np.dtype(numpy_dtype(dtype_hint)).kind)
        dtype = dtype_hint if kinds in (("i", "i"), ("i", "f"), ("f", "f")) else None
    return value if is_symbolic(value) else _as_tensor(value, dtype)


def _as_tensor(value: Any, dtype: Any) -> Any:
    if isinstance(value, jax.Array | Tracer):
        return value if dtype is None else value.astype(numpy_dtype(dtype, jnp))
    if not isinstance(value, np.ndarray | np.generic) and not is_python(value):
        if value is None:
            raise UsageError("Cannot make a tensor of None. Pass a number, a text or an array.")
        found = array(value)[1]  # a variable, or a list in which there are arrays
        return found if dtype is None else found.astype(numpy_dtype(dtype, jnp))
    held = value if hasattr(value, "dtype") else of_python(value)
    if dtype is not None and held is not value and held.dtype.kind == "f":
        wanted = np.dtype(numpy_dtype(dtype))
        if wanted.kind in "iu" and np.any(held != np.trunc(held)):
            raise UsageError.of("value", f"of integers for {wanted}", value, "Call `tf.cast`.")
    if dtype is not None:
        held = np.asarray(value if held.dtype != object else held).astype(numpy_dtype(dtype))
    if held.dtype.kind in "OSU" or in_pipeline():
        return HostTensor.of(held)
    if is_compiling() and held.dtype.kind in "biu" and held.size <= MOST_FOLDED:
        # What Python computes of it is known, too.
        return HostTensor.of(np.array(fitting(held), canonicalize_dtype(held.dtype)))
    with jax.ensure_compile_time_eval():
        return jnp.array(fitting(held))  # never the memory of an array that may change


@array_function
def identity(input: Any, name: str | None = None) -> Any:
    """The value itself, as an array; of a variable, what it holds now."""
    xp, found = array(input)
    return np.array(found) if xp is np else found


@array_function
def identity_n(input: Any, name: str | None = None) -> list[Any]:
    """The values themselves, as arrays."""
    return [identity(one) for one in input]


def is_tensor(x: Any) -> bool:
    """Whether this is an array of JAX or of a pipeline, or a variable."""
    known = isinstance(x, jax.Array | HostTensor | IndexedSlices | Composite)
    return known or is_symbolic(x) or (hasattr(x, "assign") and hasattr(x, "__jax_array__"))


def get_static_value(tensor: Any, partial: bool = False) -> Any:
    """The value as a NumPy array; None if it is computed in compiled code."""
    return None if isinstance(tensor, Tracer) or is_symbolic(tensor) else np.asarray(tensor)


def ensure_shape(x: Any, shape: Any, name: str | None = None) -> Any:
    """The array, if it can have this shape, in which None stands for any size.

    Raises:
        UsageError: If it has another one.
    """
    x = x if hasattr(x, "shape") else convert_to_tensor(x)
    if not TensorShape(shape).is_compatible_with(x.shape):
        raise UsageError(
            f"The array must have shape {TensorShape(shape)}, got {tuple(x.shape)}. Look at the "
            "code that made it."
        )
    return x


def _numpy(self: Any) -> Any:
    """The values in host memory; of one element, the number."""
    held = np.array(self)
    return held if held.ndim else held[()]


def dimension_value(dimension: Any) -> int | None:
    """A size in a shape, which is a number or None here always."""
    return dimension


def _get_shape(self: Any) -> TensorShape:
    """The shape, as a `TensorShape`."""
    return TensorShape(self.shape)


def _backing_device(self: Any) -> str:
    """The name of the device that holds the values, or of the first of those that do."""
    return device_name(min(self.sharding.device_set, key=lambda device: device.id))


@final
class NoNumpy(LeakedTracer, AttributeError):
    """A `LeakedTracer` as TensorFlow raises it, whose tensors in functions have no `numpy`."""


def _no_numpy(self: Any) -> NoReturn:
    raise NoNumpy(
        f"{self} has no `numpy()` while code is compiled. Return it and call `numpy()` on the "
        "result, or use `tf.print`."
    )


def give_shape(kind: type) -> None:
    """Let the `shape` of a class have the methods of `TensorShape`, beside those of a tuple."""
    plain: Any = kind.shape  # pyright: ignore[reportAttributeAccessIssue]
    kind.shape = property(lambda self: array_shape(plain.fget(self)), plain.fset)
    setattr(kind, "get_shape", _get_shape)  # noqa: B010
    setattr(kind, "set_shape", _set_shape)  # noqa: B010


def _set_shape(self: Any, shape: Any) -> None:
    """Check that the shape may be this one, in which None stands for any size."""
    ensure_shape(self, shape)


_OPERATORS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv"),
    *("rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "matmul", "rmatmul"),
    *("and", "rand", "or", "ror", "xor", "rxor"),
)


def class_of_arrays() -> Any:
    """The class of arrays itself, of which `jax.Array` is the base; no backend is started."""
    (arrays,) = (kind for kind in jax.Array.__subclasses__() if kind.__module__ == "jaxlib._jax")
    return arrays


def _with_lists(operator: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An operator whose other side may be a list of numbers or of arrays; JAX refuses lists."""

    @functools.wraps(operator)
    def method(self: Any, other: Any) -> Any:
        is_list = type(other) in (list, tuple) or isinstance(other, _compat.TrackedList)
        if is_list and not is_symbolic(other):
            other = array_beside(other, self.dtype)
        return operator(self, other)

    return method


def take_lists(kind: type) -> None:
    """Let the operators of a class take lists."""
    for name in {f"__{name}__" for name in _OPERATORS} & vars(kind).keys():
        setattr(kind, name, _with_lists(getattr(kind, name)))


def _refusing_zero(name: str, operator: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A quotient or remainder of integers, which a 0 that is at hand does not divide."""
    order = -1 if name.startswith("__r") else 1

    @functools.wraps(operator)
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, int | np.ndarray | np.generic | jax.Array):
            check_divisor(*(self, other)[::order])
        return operator(self, other)

    return method


def _give_methods() -> None:
    for kind in (class_of_arrays(), Unchanging):
        for name in ("__floordiv__", "__rfloordiv__", "__mod__", "__rmod__"):
            setattr(kind, name, _refusing_zero(name, getattr(kind, name)))
    for kind in (class_of_arrays(), Tracer):
        give_shape(kind)
        take_lists(kind)
    for kind, method in ((jax.Array, _numpy), (Tracer, _no_numpy)):
        setattr(kind, "numpy", method)  # noqa: B010
    setattr(class_of_arrays(), "backing_device", property(_backing_device))  # noqa: B010


def to_dlpack(tensor: Any) -> Any:
    """The capsule through which other libraries read an array."""
    return tensor.__dlpack__()


def from_dlpack(dlcapsule: Any) -> Any:
    """An array of another library, which has `__dlpack__`."""
    return jax.dlpack.from_dlpack(dlcapsule)


_give_methods()

"""Single names at the top of TensorFlow: the clock, and functions of Python."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from replicax._core.errors import UsageError
from replicax._core.host_calls import is_compiling
from replicax.data._host import HostTensor
from replicax.data._inside import is_inside
from replicax.tf._calls import fitting

__all__ = ["numpy_function", "py_function", "timestamp"]


def timestamp(name: str | None = None) -> Any:
    """The seconds since 1970; in compiled code, when it runs.

    **Differs from TF:** in compiled code they have 32 bits, unless `jax_enable_x64` is set: too few
    for the date. Take the time outside.
    """
    del name
    if not is_compiling():
        return HostTensor.of(np.float64(time.time()))
    kind = jax.dtypes.canonicalize_dtype(np.float64)
    shape = jax.ShapeDtypeStruct((), kind)
    return io_callback(lambda: np.asarray(time.time(), kind), shape)


def numpy_function(
    func: Callable[..., Any],
    inp: Sequence[Any],
    Tout: Any,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Call a function of NumPy; in compiled code, whenever it runs.

    **Differs from TF:** compiled code knows all shapes: there each result must have the shape of
    the first argument; in pipelines and eager code any. `jax.pure_callback` takes other shapes.

    Args:
        func: The function, of NumPy arrays.
        inp: Its arguments.
        Tout: The type of its result, or the types of its results.
        stateful: False if equal arguments give equal results.
        name: Not used.

    Raises:
        UsageError: If a result does not fit into 32 bits, or in compiled code has another shape.
    """
    del name
    if not is_compiling(*inp):
        return _typed(func(*map(np.asarray, inp)), Tout)
    arrays = [jax.numpy.asarray(value) for value in inp]
    kinds = [jax.dtypes.canonicalize_dtype(np.dtype(kind)) for kind in _listed(Tout)]
    shape = arrays[0].shape if arrays else ()
    found = [jax.ShapeDtypeStruct(shape, kind) for kind in kinds]

    def call(*values: Any) -> Any:
        results = _listed(func(*map(np.asarray, values)))
        pairs = zip(results, _listed(Tout), strict=True)
        return [_promised(result, kind, shape) for result, kind in pairs]

    caller = io_callback if stateful else jax.pure_callback
    results = caller(call, found, *arrays)
    return results if isinstance(Tout, list | tuple) else results[0]


def py_function(
    func: Callable[..., Any], inp: Sequence[Any], Tout: Any, name: str | None = None
) -> Any:
    """Call a function of Python; see `numpy_function`.

    **Differs from TF:** no gradient flows through it.
    """
    wrapped = func
    if not is_inside():
        wrapped = functools.wraps(func)(lambda *values: func(*map(HostTensor.of, values)))
    return numpy_function(wrapped, inp, Tout, name=name)


def _promised(result: Any, kind: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(fitting(np.asarray(result, np.dtype(kind))))
    if array.shape != shape:
        raise UsageError(
            "In compiled code, a function of Python gives arrays of the shape of its first "
            f"argument. Received: {array.shape} for {shape}. Compiled code knows all shapes before "
            "it runs. Call the function outside, or say the shape: `jax.pure_callback(func, "
            "jax.ShapeDtypeStruct((), 'float32'), x)`."
        )
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def _typed(result: Any, Tout: Any) -> Any:
    if isinstance(Tout, list | tuple):
        return [_typed(one, kind) for one, kind in zip(_listed(result), Tout, strict=True)]
    kind = np.dtype(Tout)
    array = HostTensor.of(result) if kind.kind == "O" else np.asarray(result, kind)
    if is_inside() or kind.kind == "O":
        return HostTensor.of(array)
    return jax.numpy.array(fitting(array))  # `func` may go on with its own array


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]

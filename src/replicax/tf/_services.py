"""Single names at the top of TensorFlow: the logger, the clock, and functions of Python."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from replicax._core.host_calls import is_compiling
from replicax.data._host import HostTensor
from replicax.data._inside import is_inside

__all__ = ["get_logger", "numpy_function", "py_function", "timestamp"]


def get_logger() -> logging.Logger:
    """The logger of Replicax."""
    return logging.getLogger("replicax")


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

    **Differs from TF:** compiled code knows all shapes: there the results must have the shape of
    the first argument, or be single numbers; in pipelines and eager code any.

    Args:
        func: The function, of NumPy arrays.
        inp: Its arguments.
        Tout: The type of its result, or the types of its results.
        stateful: False if equal arguments give equal results.
        name: Not used.
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
        return [
            np.broadcast_to(np.asarray(result, kind), shape)
            for result, kind in zip(results, kinds, strict=True)
        ]

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


def _typed(result: Any, Tout: Any) -> Any:
    if isinstance(Tout, list | tuple):
        return [_typed(one, kind) for one, kind in zip(_listed(result), Tout, strict=True)]
    kind = np.dtype(Tout)
    array = HostTensor.of(result) if kind.kind == "O" else np.asarray(result, kind)
    if is_inside() or kind.kind == "O":
        return HostTensor.of(array)
    return jax.numpy.asarray(array)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]

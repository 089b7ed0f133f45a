"""Single names at the top of TensorFlow: functions and variables, devices, the clock, printing.

Most are Replicax' or Keras' own under TensorFlow's names.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import io_callback

import replicax
from replicax._core.errors import UnknownDevice, UsageError
from replicax._core.host_calls import is_compiling
from replicax._core.topology import parse_device
from replicax._core.tracing import in_pipeline
from replicax._keras.variable import Variable
from replicax.data._host import HostTensor
from replicax.tf._calls import fitting
from replicax.tf._config import get_soft_device_placement

# TensorFlow's, and nothing else: programs compare it number by number.
VERSION = "2.21.0"
GIT_VERSION = COMPILER_VERSION = replicax.__version__
# The kinds of `tf.errors`, by their numbers, which are gRPC's.
# fmt: off
(
    OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS,
    PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE,
    UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED,
) = range(17)
# fmt: on

logger = logging.getLogger("replicax")
_missed: set[Any] = set()  # devices of which a warning told


def stop_gradient(input: Any, name: str | None = None) -> Any:
    """The value, through which no gradient flows; a nest of them, too."""
    return jax.lax.stop_gradient(jax.tree.map(_value_of, input))


def _value_of(value: Any) -> Any:
    return value.value if isinstance(value, Variable) else value


def device(device_name: Any) -> contextlib.AbstractContextManager[Any]:
    """Compute on a device: a context manager.

    For a device that there is not, JAX's default is taken and a warning logged, or, after
    `tf.config.set_soft_device_placement(False)`, it is an error.

    **Differs from TF:** inside compiled code, which runs on the devices of its strategy, it has
    no effect.

    Args:
        device_name: Such as "/GPU:0", "/CPU:0" or "/job:localhost/replica:0/task:0/device:TPU:1";
            a `jax.Device`, or what `tf.config.list_logical_devices` lists. None for any.

    Raises:
        UnknownDevice: If there is no such device, and placement is not soft.

    Example:
        >>> import replicax.tf as tf
        >>> with tf.device("/CPU:0"):
        ...     x = tf.constant(1.0)
    """
    is_device = isinstance(device_name, jax.Device)
    named = device_name if is_device else getattr(device_name, "name", device_name)
    if not named:
        return contextlib.nullcontext()
    try:
        return jax.default_device(
            parse_device(named if is_device else f"{named}".removesuffix(":*"))
        )
    except UnknownDevice:
        if not get_soft_device_placement():
            raise
    if named not in _missed:
        _missed.add(named)
        logger.warning("No device %s here: the default device computes instead.", named)
    return contextlib.nullcontext()


def executing_eagerly() -> bool:
    """Whether values are known now: not in code that is being compiled."""
    return not isinstance(jnp.zeros(()), Tracer)


def inside_function() -> bool:
    """Whether code is being compiled."""
    return not executing_eagerly()


@contextlib.contextmanager
def name_scope(name: str | None) -> Iterator[str]:
    """Name the operations of a block, in profiles."""
    with jax.named_scope(name or "scope"):
        yield f"{name}/"


def init_scope() -> contextlib.AbstractContextManager[Any]:
    """A block without effect: there is no graph to leave."""
    return contextlib.nullcontext()


def control_dependencies(control_inputs: Any) -> contextlib.AbstractContextManager[Any]:
    """A block without effect: what is written is run in its order, also when compiled."""
    return contextlib.nullcontext()


def group(*inputs: Any, **kwargs: Any) -> None:
    """Nothing: what is written is run. The only keyword is `name`."""
    if unknown := kwargs.keys() - {"name"}:
        raise TypeError(
            f"`tf.group` has no argument {', '.join(map(repr, sorted(unknown)))}. Pass operations "
            "by position; the only keyword is `name`."
        )


def no_op(name: str | None = None) -> None:
    """Nothing."""


def get_logger() -> logging.Logger:
    """The logger of Replicax."""
    return logger


def timestamp(name: str | None = None) -> Any:
    """The seconds since 1970; in compiled code, when it runs.

    **Differs from TF:** in compiled code they have 32 bits, unless `jax_enable_x64` is set: too few
    for the date. Take the time outside.
    """
    if not is_compiling():
        return HostTensor.of(np.float64(time.time()))
    kind = jax.dtypes.canonicalize_dtype(np.float64)
    shape = jax.ShapeDtypeStruct((), kind)
    return io_callback(lambda: np.asarray(time.time(), kind), shape)


def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] | None = None,
    Tout: Any = None,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Call a function of NumPy; in compiled code, whenever it runs.

    **Differs from TF:** compiled code knows all shapes: there each result must have the shape of
    the first argument; in pipelines and eager code any. `jax.pure_callback` takes other shapes.

    Raises:
        UsageError: If a result does not fit into 32 bits, or in compiled code has another shape.
    """
    if func is None or inp is None:
        return _decorating(numpy_function, func, Tout)
    if not is_compiling(*inp):
        given = [HostTensor.of(value) for value in inp]
        arrays = [one.numpy() if one.dtype.kind in "OSU" else np.asarray(one) for one in given]
        return _typed(func(*arrays), Tout)
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
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] | None = None,
    Tout: Any = None,
    name: str | None = None,
) -> Any:
    """Call a function of Python, see `numpy_function`; without one, a decorator for it.

    **Differs from TF:** no gradient flows through it.
    """
    if func is None or inp is None:
        return _decorating(py_function, func, Tout)
    wrapped = functools.wraps(func)(lambda *values: func(*map(HostTensor.of, values)))
    return numpy_function(wrapped, inp, Tout, name=name)


def _decorating(caller: Callable[..., Any], func: Any, Tout: Any) -> Any:
    """A function that is called by `caller`, or a decorator that makes one."""
    if func is None:
        return lambda func: _decorating(caller, func, Tout)
    return functools.wraps(func)(lambda *inp: caller(func, inp, Tout))


def _promised(result: Any, kind: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(fitting(np.asarray(result, np.dtype(kind))))
    if array.shape != shape:
        raise UsageError(
            "A Python function in compiled code must return the shape of its first argument, "
            f"{shape}, got {array.shape}. Call it outside, or state the shape: "
            "`jax.pure_callback(func, jax.ShapeDtypeStruct((), 'float32'), x)`."
        )
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def _typed(result: Any, Tout: Any) -> Any:
    if isinstance(Tout, list | tuple):
        return [_typed(one, kind) for one, kind in zip(_listed(result), Tout, strict=True)]
    kind = np.dtype(Tout)
    array = HostTensor.of(result) if kind.kind == "O" else np.asarray(result, kind)
    if in_pipeline() or kind.kind == "O":
        return HostTensor.of(array)
    return jax.numpy.array(fitting(array))  # `func` may go on with its own array


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]

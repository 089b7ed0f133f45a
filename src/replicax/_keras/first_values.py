"""First values of variables without a compilation for each shape.

Keras draws eagerly, so JAX compiles a generator for each shape: half a second each on a CPU. But
the n-th number of a draw depends on the seed and on n only. So on CPUs NumPy draws what is uniform,
and for normal numbers one program draws for many shapes, and what is too much is cut off. The
numbers are the same, to the bit. They go to the device by a copy: `jnp.asarray` would compile a
program for each shape.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from replicax._core import threefry
from replicax._core.host_calls import is_compiling
from replicax._core.host_devices import jax_setting
from replicax._core.starting import keep_memory_of_cpus
from replicax._keras import _compat

# Programs draw 4^k numbers; a shape of more is drawn as it is.
_LEAST, _MOST = 4**8, 4**11
# Enough for the same bits; with more, a generator takes four times as long to compile.
_OPTIONS = {"xla_backend_optimization_level": 1}
_KINDS = {"float32": float, "int32": int}  # what numbers may be by themselves, as of an optimizer
_CONSTANTS = ((keras.initializers.Zeros, np.zeros), (keras.initializers.Ones, np.ones))


def install() -> None:
    """Put the seams into Keras; a second call changes nothing."""
    for kind, make in _CONSTANTS:
        _compat.wrap(kind, "__call__", functools.partial(_from_host, make=make))
    _compat.wrap(_compat.JaxVariable, "_convert_to_tensor", _from_number)
    _compat.wrap(_compat.jax_random, "uniform", _quick_uniform)
    for name, draw in (("normal", jax.random.normal), ("truncated_normal", _truncated)):
        _compat.wrap(_compat.jax_random, name, functools.partial(_quick_normal, draw=draw))


def _from_host(original: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def constant(self: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
        keep_memory_of_cpus()
        if is_compiling() or jax.default_backend() != "cpu":
            return original(self, shape, dtype)
        kind = jnp.dtype(keras.backend.standardize_dtype(dtype))
        return jax.device_put(make(shape, kind))

    return constant


def _from_number(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def convert(self: Any, value: Any, dtype: Any = None) -> Any:
        if dtype is None or not isinstance(value, int | float):
            return original(self, value, dtype=dtype)
        keep_memory_of_cpus()
        name = keras.backend.standardize_dtype(dtype)
        if type(value) is not _KINDS.get(name) or is_compiling() or jax.default_backend() != "cpu":
            return original(self, value, dtype=dtype)
        return jax.device_put(np.asarray(value, name))

    return convert


def _quick_uniform(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def uniform(
        shape: Sequence[int],
        minval: Any = 0.0,
        maxval: Any = 1.0,
        dtype: str | None = None,
        seed: Any = None,
    ) -> Any:
        if not _is_quick(shape, dtype, seed, minval, maxval):
            return original(shape, minval, maxval, dtype, seed)
        key = _key(seed)
        if threefry.rounds_once() and threefry.is_exact(minval, maxval):
            numbers = threefry.uniform(key, math.prod(shape), minval, maxval)
            return jax.device_put(numbers.reshape(shape))
        limits = np.float32(minval), np.float32(maxval)
        return jax.device_put(_drawn(_uniform, shape, key, *limits))

    return uniform


def _quick_normal(original: Callable[..., Any], draw: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def normal(
        shape: Sequence[int],
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: str | None = None,
        seed: Any = None,
    ) -> Any:
        if not _is_quick(shape, dtype, seed, mean, stddev):
            return original(shape, mean, stddev, dtype, seed)
        numbers = _drawn(draw, shape, _key(seed))
        return jax.device_put(numbers * np.float32(stddev) + np.float32(mean))

    return normal


def _is_quick(shape: Sequence[int], dtype: str | None, seed: Any, *numbers: Any) -> bool:
    """Whether a draw is one that this file knows to make, and that is made now."""
    keep_memory_of_cpus()  # the first value of a program's first model may start JAX
    return (
        not is_compiling(seed)
        and all(isinstance(number, int | float) for number in numbers)
        and all(isinstance(length, int) for length in shape)
        and 0 < math.prod(shape) <= _MOST
        and (dtype or keras.config.floatx()) == "float32"
        and jax.default_backend() == "cpu"
        and jax_setting("jax_default_prng_impl") == "threefry2x32"
        and jax_setting("jax_threefry_partitionable")
    )


def _key(seed: Any) -> np.ndarray:
    """The key of one draw, without a program where a number stands for it."""
    if type(seed) is int and 0 <= seed < 2**32:
        return np.array([seed, 0], np.uint32)
    key = _compat.drawn_seed(seed)
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(key) if is_typed else key)


def _drawn(draw: Callable[..., Any], shape: Sequence[int], key: Any, *limits: Any) -> np.ndarray:
    count = math.prod(shape)
    size = max(_LEAST, 4 ** math.ceil(math.log(count, 4)))
    # A copy: a part would keep the whole alive.
    numbers = np.asarray(_program(draw, size)(key, *limits))
    return numbers[:count].reshape(shape).copy()


@functools.cache
def _program(draw: Callable[..., Any], size: int) -> Any:
    return jax.jit(
        lambda seed, *limits: draw(seed, *limits, shape=(size,)), compiler_options=_OPTIONS
    )


def _uniform(seed: Any, low: Any, high: Any, *, shape: Sequence[int]) -> Any:
    return jax.random.uniform(seed, shape, minval=low, maxval=high)


def _truncated(seed: Any, *, shape: Sequence[int]) -> Any:
    return jax.random.truncated_normal(seed, lower=-2.0, upper=2.0, shape=shape)

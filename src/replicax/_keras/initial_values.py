"""Initial values of variables on CPUs, without a compilation for each shape.

JAX compiles a random generator for each shape: a quarter of a second of CPU time each. But the n-th
number of a draw depends on the seed and on n only. So one program draws for all shapes up to a
size, and the rest is cut off: the numbers are the same, to the bit. Zeros and ones are NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend.core import get_opaque_trace_state

from replicax._core.machine.compilation_cache import jax_setting
from replicax._core.tracing import eager_state
from replicax._keras import _compat
from replicax._keras.distribution import StoreDistribution
from replicax._keras.workers import from_chief

# The lengths of draws. A larger array is drawn as Keras draws it: padding would take long.
_LENGTHS = (1 << 16, 1 << 19, 1 << 22)
_CONSTANTS = {keras.initializers.Zeros: 0, keras.initializers.Ones: 1}
_SHAPELESS = (
    keras.initializers.RandomNormal,
    keras.initializers.RandomUniform,
    keras.initializers.TruncatedNormal,
)


def install() -> None:
    _compat.patch(_compat.JaxVariable, "_initialize_with_initializer", _quickly)


def _quickly(original: Callable[..., Any], self: Any, initializer: Any) -> None:
    kind = type(initializer)
    is_known = kind in _CONSTANTS or kind in _SHAPELESS or _scales_variance(initializer)
    from_chief(original, self, QuickInitializer(initializer, self) if is_known else initializer)


@final
@dataclass(frozen=True)
class QuickInitializer:
    """An initializer of Keras for a variable that belongs to a strategy's scope."""

    initializer: Any
    variable: Any

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Any:
        if not self._is_on_cpu():
            return self.initializer(shape, dtype=dtype)
        if type(self.initializer) in _CONSTANTS:
            kind = jnp.dtype(keras.backend.standardize_dtype(dtype))
            return jax.device_put(np.full(shape, _CONSTANTS[type(self.initializer)], kind))
        count = math.prod(shape)
        length = next((length for length in _LENGTHS if length >= count > 0), None)
        if length is None or not _counts_from_zero(dtype):
            return self.initializer(shape, dtype=dtype)
        drawn = _shapeless(self.initializer, shape)((length,), dtype=dtype)
        numbers = np.asarray(drawn)[:count]
        return jax.device_put(numbers.reshape(shape).copy())  # a view would keep the rest alive

    def _is_on_cpu(self) -> bool:
        # Keras 3.12 asks for the variable's layout, which names its owner, after its value.
        is_ours = isinstance(_compat.distribution(), StoreDistribution)
        return (
            (is_ours or _compat.owner(self.variable) is not None)
            and jax.default_backend() == "cpu"
            and get_opaque_trace_state() == eager_state()
        )


def _counts_from_zero(dtype: Any) -> bool:
    """Whether JAX draws the n-th number from the seed and n alone."""
    return (
        keras.backend.standardize_dtype(dtype) == "float32"
        and jax_setting("jax_default_prng_impl") == "threefry2x32"
        and jax_setting("jax_threefry_partitionable")
    )


def _scales_variance(initializer: Any) -> bool:
    return type(initializer).__call__ is keras.initializers.VarianceScaling.__call__


def _shapeless(initializer: Any, shape: Sequence[int]) -> Any:
    """An initializer that draws the same numbers for any shape; its limits are Keras' own."""
    if type(initializer) in _SHAPELESS:
        return initializer
    fan_in, fan_out = _compat.fans(initializer, shape)
    fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2.0}
    scale = initializer.scale / max(1.0, fans[initializer.mode])
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * scale)
        return keras.initializers.RandomUniform(-limit, limit, initializer.seed)
    deviation = math.sqrt(scale)
    if initializer.distribution == "untruncated_normal":
        return keras.initializers.RandomNormal(0.0, deviation, initializer.seed)
    truncated = 0.87962566103423978  # the deviation of a standard normal cut off at ±2
    return keras.initializers.TruncatedNormal(0.0, deviation / truncated, initializer.seed)

"""TensorFlow's arguments of each distribution, for any source of draws."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._core.errors import UsageError
from replicax.tf._calls import static_shape as shape_of


def kind_of(dtype: Any) -> Any:
    """The type that JAX computes with, in 32 bits where it does not use 64."""
    return jax.dtypes.canonicalize_dtype(np.dtype(dtype))


def uniform(draw: Any, shape: Any, minval: Any, maxval: Any, dtype: Any) -> Any:
    dtype, sizes = kind_of(dtype), shape_of(shape)
    if jnp.issubdtype(dtype, jnp.integer):
        if maxval is None:
            raise UsageError(
                "Integers are drawn below a bound. Received: maxval=None, "
                f"dtype={dtype.name}. All integers are not a range. Pass `maxval`."
            )
        return draw.integers(sizes, minval, maxval, dtype)
    top = 1 if maxval is None else maxval
    drawn = draw.uniform(sizes, dtype)
    return (drawn * (top - minval) + minval).astype(dtype)


def normal(draw: Any, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Any:
    dtype = kind_of(dtype)
    return (draw.normal(shape_of(shape), dtype) * stddev + mean).astype(dtype)


def truncated_normal(draw: Any, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Any:
    dtype = kind_of(dtype)
    return (draw.truncated(shape_of(shape), dtype) * stddev + mean).astype(dtype)


def parameterized(draw: Any, shape: Any, means: Any, stddevs: Any, low: Any, high: Any) -> Any:
    bounds = ((low - means) / stddevs, (high - means) / stddevs)
    return draw.truncated(shape_of(shape), np.dtype("float32"), *bounds) * stddevs + means


def _floats(value: Any) -> Any:
    return value if hasattr(value, "shape") else np.asarray(value, np.float32)


def gamma(draw: Any, shape: Any, alpha: Any, beta: Any, dtype: Any) -> Any:
    dtype, beta = kind_of(dtype), 1.0 if beta is None else beta
    return (draw.gamma(_floats(alpha), shape_of(shape), dtype) / _floats(beta)).astype(dtype)


def poisson(draw: Any, shape: Any, lam: Any, dtype: Any) -> Any:
    return draw.poisson(_floats(lam), shape_of(shape)).astype(kind_of(dtype))


def binomial(draw: Any, shape: Any, counts: Any, probs: Any, dtype: Any) -> Any:
    sizes = shape_of(shape)
    counts, probs = (np.broadcast_to(np.float32(one), sizes) for one in (counts, probs))
    return draw.binomial(counts, probs, sizes).astype(kind_of(dtype))


def categorical(draw: Any, logits: Any, num_samples: int, dtype: Any) -> Any:
    rows = logits if hasattr(logits, "ndim") else np.asarray(logits, np.float32)
    return draw.categorical(rows, int(num_samples)).astype(kind_of(dtype or "int64"))

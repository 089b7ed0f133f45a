"""Draws from distributions, by JAX or, in functions of pipelines, by NumPy: the same arguments."""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

# Beyond two standard deviations nothing is drawn.
_BOUND = 2.0


@final
class JaxDraw:
    """Draws of JAX.

    Args:
        key: Of `jax.random`; used once.
    """

    def __init__(self, key: Any) -> None:
        self._key = key

    def uniform(self, shape: Any, dtype: Any) -> Any:
        return jax.random.uniform(self._key, shape, dtype)

    def integers(self, shape: Any, low: Any, high: Any, dtype: Any) -> Any:
        return jax.random.randint(self._key, shape, low, high, dtype)

    def normal(self, shape: Any, dtype: Any) -> Any:
        return jax.random.normal(self._key, shape, dtype)

    def truncated(self, shape: Any, dtype: Any, low: Any = -_BOUND, high: Any = _BOUND) -> Any:
        return jax.random.truncated_normal(self._key, low, high, shape, dtype)

    def gamma(self, alpha: Any, shape: Any, dtype: Any) -> Any:
        return jax.random.gamma(self._key, alpha, shape, dtype)

    def poisson(self, rate: Any, shape: Any) -> Any:
        return jax.random.poisson(self._key, rate, shape)

    def binomial(self, counts: Any, probs: Any, shape: Any) -> Any:
        return jax.random.binomial(self._key, counts, probs, shape)

    def categorical(self, logits: Any, samples: int) -> Any:
        drawn = jax.random.categorical(self._key, logits, shape=(samples, *logits.shape[:-1]))
        return jnp.moveaxis(drawn, 0, -1)

    def shuffled(self, value: Any) -> Any:
        return jax.random.permutation(self._key, value, axis=0)

    def bits(self, shape: Any, dtype: Any) -> Any:
        return jax.random.bits(self._key, shape, dtype)


@final
class HostDraw:
    """The same of NumPy.

    Args:
        random: What draws.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def uniform(self, shape: Any, dtype: Any) -> Any:
        single = np.dtype(dtype) != np.float64
        drawn = self._random.random(shape, np.float32 if single else np.float64)
        return np.asarray(drawn).astype(dtype)

    def integers(self, shape: Any, low: Any, high: Any, dtype: Any) -> Any:
        return np.asarray(self._random.integers(low, high, shape, dtype))

    def normal(self, shape: Any, dtype: Any) -> Any:
        return np.asarray(self._random.standard_normal(shape)).astype(dtype)

    def truncated(self, shape: Any, dtype: Any, low: Any = -_BOUND, high: Any = _BOUND) -> Any:
        drawn = np.asarray(self._random.standard_normal(shape))
        while (outside := (drawn < low) | (drawn > high)).any():
            drawn = np.where(outside, self._random.standard_normal(drawn.shape), drawn)
        return drawn.astype(dtype)

    def gamma(self, alpha: Any, shape: Any, dtype: Any) -> Any:
        return np.asarray(self._random.standard_gamma(np.broadcast_to(alpha, shape))).astype(dtype)

    def poisson(self, rate: Any, shape: Any) -> Any:
        return np.asarray(self._random.poisson(rate, shape))

    def binomial(self, counts: Any, probs: Any, shape: Any) -> Any:
        return np.asarray(self._random.binomial(counts.astype(np.int64), probs, shape))

    def categorical(self, logits: Any, samples: int) -> Any:
        noise = self._random.gumbel(size=(samples, *logits.shape))
        return np.moveaxis((np.asarray(logits) + noise).argmax(-1), 0, -1)

    def shuffled(self, value: Any) -> Any:
        return self._random.permutation(value, axis=0)

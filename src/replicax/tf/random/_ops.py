"""Draws with TensorFlow's global and operation seeds: a new number at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.core import Tracer

from replicax._keras.random_streams import streams
from replicax.data._inside import is_inside
from replicax.tf.random import _distributions as of
from replicax.tf.random._draws import HostDraw, JaxDraw


def set_seed(seed: int) -> None:
    """Begin all random numbers anew: what is drawn from here on is the same each time.

    **Differs from TF:** the numbers are others, those of JAX, and in functions of pipelines those
    of NumPy. In compiled code each replica draws its own, and what is compiled begins anew, too.

    Args:
        seed: An integer.

    Example:
        >>> import replicax.tf as tf
        >>> tf.random.set_seed(1)
        >>> first = tf.random.uniform([])
        >>> tf.random.set_seed(1)
        >>> bool(first == tf.random.uniform([]))
        True
    """
    streams().reset(int(seed))


def _drawn(fn: Callable[..., Any], seed: int | None, *arguments: Any) -> Any:
    traced = any(isinstance(argument, Tracer) for argument in arguments)
    if is_inside() and not traced:
        with streams().lock:
            return fn(HostDraw(streams().on_host(seed)), *arguments)
    return fn(JaxDraw(streams().key(seed)), *arguments)


def uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Any:
    """Numbers from `minval` up to, but without, `maxval`."""
    del name
    return _drawn(of.uniform, seed, shape, minval, maxval, dtype)


def normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Any:
    """Normal numbers."""
    del name
    return _drawn(of.normal, seed, shape, mean, stddev, dtype)


def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Any:
    """Normal numbers, none of them beyond two standard deviations."""
    del name
    return _drawn(of.truncated_normal, seed, shape, mean, stddev, dtype)


def gamma(
    shape: Any,
    alpha: Any,
    beta: Any = None,
    dtype: Any = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Any:
    """Gamma numbers; of the shape `shape` + that of alpha and beta."""
    del name
    sizes = (*of.shape_of(shape), *np.broadcast_shapes(np.shape(alpha), np.shape(beta or 1)))
    return _drawn(of.gamma, seed, sizes, alpha, beta, dtype)


def poisson(
    shape: Any, lam: Any, dtype: Any = "float32", seed: int | None = None, name: str | None = None
) -> Any:
    """Poisson numbers; of the shape `shape` + that of `lam`."""
    del name
    return _drawn(of.poisson, seed, (*of.shape_of(shape), *np.shape(lam)), lam, dtype)


def categorical(
    logits: Any, num_samples: int, dtype: Any = None, seed: int | None = None, name: Any = None
) -> Any:
    """Numbers of classes, by unnormalized log-probabilities: `num_samples` for each row."""
    del name
    return _drawn(of.categorical, seed, logits, num_samples, dtype)


def shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Any:
    """The rows in a random order."""
    del name
    rows = value if hasattr(value, "shape") else np.asarray(value)
    return _drawn(lambda draw, rows: draw.shuffled(rows), seed, rows)

"""Draws that follow from a seed of two numbers alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from replicax._keras.random_streams import as_key
from replicax.data._inside import is_inside
from replicax.tf.random import _distributions as of
from replicax.tf.random._draws import HostDraw, JaxDraw


def _drawn(fn: Callable[..., Any], seed: Any, *arguments: Any) -> Any:
    values = [seed, *(seed if isinstance(seed, list | tuple) else ()), *arguments]
    if is_inside() and not any(isinstance(value, Tracer) for value in values):
        words = np.asarray(seed).astype(np.int64).view(np.uint64)
        return fn(
            HostDraw(np.random.Generator(np.random.Philox(list(map(int, words))))), *arguments
        )
    return fn(JaxDraw(as_key(seed)), *arguments)


def stateless_uniform(
    shape: Any,
    seed: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = "float32",
    name: str | None = None,
    alg: Any = "auto_select",
) -> Any:
    """As `uniform`; equal seeds give equal numbers."""
    del name, alg
    return _drawn(of.uniform, seed, shape, minval, maxval, dtype)


def stateless_normal(
    shape: Any,
    seed: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = "float32",
    name: str | None = None,
    alg: Any = "auto_select",
) -> Any:
    """As `normal`; equal seeds give equal numbers."""
    del name, alg
    return _drawn(of.normal, seed, shape, mean, stddev, dtype)


def stateless_truncated_normal(
    shape: Any,
    seed: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = "float32",
    name: str | None = None,
    alg: Any = "auto_select",
) -> Any:
    """As `truncated_normal`; equal seeds give equal numbers."""
    del name, alg
    return _drawn(of.truncated_normal, seed, shape, mean, stddev, dtype)


def stateless_parameterized_truncated_normal(
    shape: Any,
    seed: Any,
    means: Any = 0.0,
    stddevs: Any = 1.0,
    minvals: Any = -2.0,
    maxvals: Any = 2.0,
    name: str | None = None,
) -> Any:
    """Normal numbers from `minvals` to `maxvals`."""
    del name
    return _drawn(of.parameterized, seed, shape, means, stddevs, minvals, maxvals)


def stateless_gamma(
    shape: Any,
    seed: Any,
    alpha: Any,
    beta: Any = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> Any:
    """Gamma numbers of this whole shape."""
    del name
    return _drawn(of.gamma, seed, shape, alpha, beta, dtype)


def stateless_poisson(
    shape: Any, seed: Any, lam: Any, dtype: Any = "int32", name: str | None = None
) -> Any:
    """Poisson numbers of this whole shape."""
    del name
    return _drawn(of.poisson, seed, shape, lam, dtype)


def stateless_binomial(
    shape: Any,
    seed: Any,
    counts: Any,
    probs: Any,
    output_dtype: Any = "int32",
    name: str | None = None,
) -> Any:
    """Binomial numbers of this whole shape."""
    del name
    return _drawn(of.binomial, seed, shape, counts, probs, output_dtype)


def stateless_categorical(
    logits: Any, num_samples: int, seed: Any, dtype: Any = "int64", name: str | None = None
) -> Any:
    """As `categorical`; equal seeds give equal numbers."""
    del name
    return _drawn(of.categorical, seed, logits, num_samples, dtype)


def stateless_shuffle(
    value: Any, seed: Any, alg: Any = "auto_select", name: str | None = None
) -> Any:
    """As `shuffle`; equal seeds give equal orders."""
    del name, alg
    rows = value if hasattr(value, "shape") else np.asarray(value)
    return _drawn(lambda draw, rows: draw.shuffled(rows), seed, rows)


def split(seed: Any, num: int = 2, alg: Any = "auto_select") -> Any:
    """New seeds of a seed: an array of shape (num, 2)."""
    del alg
    if is_inside() and not isinstance(seed, Tracer):
        return _drawn(lambda draw: draw.integers((num, 2), 0, 2**31 - 1, np.int32), seed)
    return jax.random.key_data(jax.random.split(as_key(seed), num)).astype("int32")


def fold_in(seed: Any, data: Any, alg: Any = "auto_select") -> Any:
    """A new seed of a seed and a number."""
    del alg
    if is_inside() and not isinstance(seed, Tracer):
        words = [*np.asarray(seed).tolist(), int(data)]
        return np.random.SeedSequence([word % 2**64 for word in words]).generate_state(2).view("i4")
    return jax.random.key_data(jax.random.fold_in(as_key(seed), data)).astype("int32")

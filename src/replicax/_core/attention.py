"""Attention on CPUs, so that no array of `query × key positions` is copied or transposed.

JAX divides each weight by the sum of its row. As many weights as there are pairs of positions are
written once more for it, and again transposed, in the order in which XLA multiplies them with the
values. Here the rows of the result are divided, which are short. The gradient that follows by the
rules of calculus is the one that kernels for other devices are written for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from replicax._core.cpu_tuning import is_on

_COVERED = {"scale", "is_causal", "implementation"}
_RANK = 4  # rows, positions, heads, features
# Part of what a number may be at most, as in JAX: a row of which nothing is seen has equal weights.
_UNSEEN = -0.7 * float(jnp.finfo(jnp.float32).max)


def install() -> None:
    """Let programs for CPUs compute `jax.nn.dot_product_attention` so; Keras' layers call it."""
    if not hasattr(jax.nn.dot_product_attention, "_replicax_original"):
        jax.nn.dot_product_attention = _chosen(jax.nn.dot_product_attention)


def _chosen(stock: Callable[..., Any]) -> Any:
    @functools.wraps(stock)
    def dot_product_attention(
        query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any
    ) -> Any:
        if not is_on("attention") or not covers(query, key, value, bias, mask, **options):
            return stock(query, key, value, bias, mask, **options)
        scale, causal = options.get("scale"), options.get("is_causal", False)
        return lax.platform_dependent(
            *(query, key, value, bias, mask),
            cpu=functools.partial(attend, scale=scale, is_causal=causal),
            default=functools.partial(stock, **options),
        )

    dot_product_attention.__dict__["_replicax_original"] = stock
    return dot_product_attention


def covers(
    query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any
) -> bool:
    """Whether attention like this is computed here: as many heads on both sides, float32.

    What is empty, or of shapes that do not fit, is left to JAX, which knows what to say of it.
    """
    if options.get("implementation") not in (None, "xla") or not set(options) <= _COVERED:
        return False
    arrays = (query, key, value)
    given = (*arrays, *(array for array in (bias, mask) if array is not None))
    if any(getattr(array, "ndim", 0) != _RANK for array in given):
        return False
    (rows, positions, heads, width), seen = query.shape, key.shape[1]
    same = key.shape == value.shape == (rows, seen, heads, width) and seen != 0
    types = all(array.dtype == jnp.float32 for array in arrays)
    pairs = (rows, heads, positions, seen)
    fit = all(
        size in (1, whole)
        for array in given[3:]
        for size, whole in zip(array.shape, pairs, strict=True)
    )
    return same and types and fit and (mask is None or mask.dtype == bool)


def attend(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
) -> Any:
    """Attention, as `jax.nn.dot_product_attention` defines it.

    Args:
        query: `rows × positions × heads × features`.
        key: The same, of what is looked at.
        value: Of the same shape as `key`.
        bias: Is added to the products; of a shape that fits `rows × heads × positions × positions`.
        mask: Which pairs of positions are seen; of such a shape.
        scale: What the products are multiplied by; by default one over the root of the features.
        is_causal: Whether no position sees a later one.

    Returns:
        Means of `value`, in the shape of `query`.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    by_head = (_by_head(query) * jnp.asarray(scale, query.dtype), _by_head(key), _by_head(value))
    # XLA would put the transpositions into the products, where they cost more.
    query, key, value = lax.optimization_barrier(by_head)
    logits = query @ jnp.swapaxes(key, 2, 3)
    if bias is not None:
        logits = (logits + bias).astype(logits.dtype)
    if is_causal:
        seen = jnp.tril(jnp.ones(logits.shape[2:], bool))
        mask = seen if mask is None else mask & seen
    if mask is not None:
        logits = jnp.where(mask, logits, jnp.float32(_UNSEEN))
    weights = jnp.exp(logits - lax.stop_gradient(logits.max(-1, keepdims=True)))
    return _by_head((weights @ value) / weights.sum(-1, keepdims=True))


def _by_head(array: Any) -> Any:
    return jnp.transpose(array, (0, 2, 1, 3))

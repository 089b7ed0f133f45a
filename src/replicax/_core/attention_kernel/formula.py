"""Attention as operations of JAX, so that no array of `query × key positions` is transposed.

JAX divides each weight by the sum of its row. As many weights as there are pairs of positions are
written once more for it, and again transposed, in the order in which XLA multiplies them with the
values. Here the rows of the result are divided, which are short. The gradient that follows by the
rules of calculus is the one that kernels for other devices are written for.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

# Part of what a number may be at most, as in JAX: a row of which nothing is seen has equal weights.
_UNSEEN = -0.7 * float(jnp.finfo(jnp.float32).max)


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

"""Attention on CPUs: by the kernel where that is, else by operations of JAX that cost less.

JAX's own computes as many weights as there are pairs of positions, and copies and transposes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from replicax._core.attention_kernel.formula import attend
from replicax._core.attention_kernel.operation import attend_here, is_for_kernel
from replicax._core.cpu_tuning import is_on
from replicax._core.lowering import has_known_sizes

_COVERED = {"scale", "is_causal", "implementation"}
_RANK = 4  # rows, positions, heads, features


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
        plain = bias is None and mask is None and is_for_kernel(scale)
        return lax.platform_dependent(
            *(query, key, value, bias, mask),
            cpu=functools.partial(attend_here if plain else attend, scale=scale, is_causal=causal),
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
    if any(getattr(array, "ndim", 0) != _RANK for array in given) or not has_known_sizes(*given):
        return False
    (rows, positions, heads, width), seen = query.shape, key.shape[1]
    same = key.shape == value.shape == (rows, seen, heads, width)
    types = all(array.dtype == jnp.float32 for array in arrays)
    pairs = (rows, heads, positions, seen)
    fit = all(
        size in (1, whole)
        for array in given[3:]
        for size, whole in zip(array.shape, pairs, strict=True)
    )
    return same and types and fit and (mask is None or mask.dtype == bool)

"""Keras' attention, on CPUs: by the kernel where that is, else by operations that cost less.

JAX's own computes as many weights as there are pairs of positions, and copies and transposes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from replicax._cpu.attention import attend, attend_here, is_for_kernel
from replicax._cpu.lowering import has_known_sizes, in_32_bits
from replicax._cpu.tuning import is_on
from replicax._keras import _compat

_RANK = 4  # rows, positions, heads, features
_TYPES = (jnp.float32, jnp.bfloat16)


def install() -> None:
    """Put the seam into Keras' backend; a second call changes nothing."""
    _compat.wrap(_compat.jax_nn, "dot_product_attention", _chosen)


def _chosen(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        bias: Any = None,
        mask: Any = None,
        scale: Any = None,
        is_causal: bool = False,
        flash_attention: bool | None = None,
        attn_logits_soft_cap: float | None = None,
    ) -> Any:
        how = {"scale": scale, "is_causal": is_causal}
        others = {"flash_attention": flash_attention, "attn_logits_soft_cap": attn_logits_soft_cap}
        own, arrays = functools.partial(stock, **how, **others), (query, key, value, bias, mask)
        stays = flash_attention or attn_logits_soft_cap is not None or not is_on("attention")
        if stays or not covers(*arrays):
            return own(*arrays)
        plain = bias is None and mask is None and is_for_kernel(scale)
        ours = functools.partial(in_32_bits(attend_here if plain else attend), **how)
        return lax.platform_dependent(*arrays, cpu=ours, default=own)

    return dot_product_attention


def covers(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None) -> bool:
    """Whether attention like this is computed here: as many heads on both sides, of one type.

    What is empty, or of shapes that do not fit, is left to Keras, which knows what to say of it.
    """
    arrays = (query, key, value)
    given = (*arrays, *(array for array in (bias, mask) if array is not None))
    if any(getattr(array, "ndim", 0) != _RANK for array in given) or not has_known_sizes(*given):
        return False
    (rows, positions, heads, width), seen = query.shape, key.shape[1]
    same = key.shape == value.shape == (rows, seen, heads, width)
    one_type = query.dtype == key.dtype == value.dtype and query.dtype in _TYPES
    pairs = (rows, heads, positions, seen)
    fit = all(
        size in (1, whole)
        for array in given[3:]
        for size, whole in zip(array.shape, pairs, strict=True)
    )
    return same and one_type and fit and (mask is None or mask.dtype == bool)

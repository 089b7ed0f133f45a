"""Patches of operations of Keras' backend for the platform of the strategy.

On CPUs attention uses a kernel, or cheaper operations: JAX's own materializes, copies and
transposes the weights of all pairs of positions.

On GPUs Keras uses cuDNN for LSTMs and for 16-bit attention. It asks for JAX's default platform, but
a strategy may compute on another one: on the CPU of a machine with GPUs, or on other workers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from replicax._core.context import current_frame
from replicax._cpu.attention import attend, attend_here, is_for_kernel
from replicax._cpu.lowering import has_known_sizes, in_32_bits
from replicax._cpu.tuning import is_on
from replicax._keras import _compat
from replicax._keras.distribution import StoreDistribution

_RANK = 4  # rows, positions, heads, features
_TYPES = (jnp.float32, jnp.bfloat16)


def install() -> None:
    _compat.patch(_compat.jax_nn, "dot_product_attention", _attention)
    _compat.patch(_compat.jax_nn, _compat.ATTENTION_BY_CUDNN, _not_on_cpu)
    if hasattr(_compat.jax_rnn, _compat.LSTM_ON_GPU):  # Keras before 3.15 has no LSTM by cuDNN
        _compat.patch(_compat.jax_rnn, _compat.LSTM_ON_GPU, _gpu_of_strategy)


def _attention(
    stock: Callable[..., Any],
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


def covers(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None) -> bool:
    """Whether our attention supports these arrays: equal numbers of heads, and one dtype.

    Other arrays, also empty ones and shapes that do not fit, are left to Keras.
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


def _gpu_of_strategy(original: Callable[..., Any]) -> bool:
    platform = _platform()
    return original() if platform is None else platform == "gpu"


def _not_on_cpu(original: Callable[..., Any], *arrays: Any, raise_error: bool = False) -> bool:
    if not raise_error and _platform() == "cpu":
        return False
    return original(*arrays, raise_error=raise_error)


def _platform() -> str | None:
    """The platform of the current strategy; None without one.

    Closures of parameter servers count as CPU programs, because workers may have only CPUs.
    """
    found: Any = _compat.distribution()  # that of `fit`
    if not isinstance(found, StoreDistribution) and (frame := current_frame()) is not None:
        found = getattr(frame.strategy.extended, "distribution", None)
    if not isinstance(found, StoreDistribution):
        return None
    return "cpu" if found.engine.closures is not None else found.topology.platform

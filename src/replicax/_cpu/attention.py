"""Attention on CPUs: a formula that is cheaper than JAX's, and a kernel of our own.

The formula uses operations of JAX, and transposes no array of `query × key positions`. JAX divides
each weight by the sum of its row, which writes all weights once more, and a third time transposed
for XLA's product with the values. The formula divides the rows of the result instead, which are
short. Its derivative is the gradient that attention kernels for other devices use.

`src/attention.c` computes attention and its gradient. Three operations make all transformations of
JAX work: attention, its tangent, which is linear in the tangents of its inputs, and the transpose
of the tangent, which is the gradient. The kernel has the first and the last. In a program that is
divided over devices XLA would give the kernel whole arrays, so the formula is used there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from replicax._core.context import current_frame
from replicax._core.tracing import with_around
from replicax._cpu import kernels
from replicax._cpu.kernels import ATTENTION, ATTENTION_GRADIENT
from replicax._cpu.lowering import (
    is_on_one_device,
    is_whole,
    operation,
    varying_alike,
)

# A fraction of the largest number, as in JAX: a row that is masked completely has equal weights.
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

    Query, key, value and result are `rows × positions × heads × features`; bias and mask broadcast
    to `rows × heads × query positions × key positions`. The default scale is 1 / √features.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    by_head = (_by_head(query) * jnp.asarray(scale, query.dtype), _by_head(key), _by_head(value))
    # Without the barrier XLA moves the transpositions into the products, where they cost more.
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


@contextmanager
def on_this_machine(stays: bool) -> Generator[list[jax.export.DisabledSafetyCheck]]:
    """Export in a `with` block; a program that `stays` on this machine may use the kernel.

    The process that loads such a program must load the kernels first. Yields the safety checks
    that the export has to disable.
    """
    names = (ATTENTION, ATTENTION_GRADIENT) if stays else ()
    with with_around(kernels=frozenset(names)):
        yield [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]


def is_for_kernel(scale: Any) -> bool:
    """Whether the kernel computes attention here, which needs arrays of a single device."""
    is_number = scale is None or isinstance(scale, int | float)
    return is_number and _is_on_one_device() and kernels.are_there()


def _is_on_one_device() -> bool:
    frame = current_frame()
    if frame is not None and frame.replica is not None:
        return frame.replica.group.is_on_one_device
    return is_whole(jax.sharding.get_abstract_mesh()) or jax.device_count() == 1


def attend_here(
    query: Any,
    key: Any,
    value: Any,
    *_: None,
    scale: float | None = None,
    is_causal: bool = False,
) -> Any:
    """`attend` by the kernel, without bias and mask."""
    how = {"scale": float(query.shape[-1] ** -0.5 if scale is None else scale), "causal": is_causal}
    return _attention.bind(*varying_alike(query, key, value), **how)[0]


def _formula(scale: float, causal: bool) -> Callable[..., Any]:
    return functools.partial(attend, scale=scale, is_causal=causal)


def _plain(query: Any, key: Any, value: Any, *, scale: float, causal: bool) -> Any:
    """Attention without the kernel; zeros in place of the kernel's residuals, which are unused."""
    rows, positions, heads, _ = query.shape
    result = _formula(scale, causal)(query, key, value)
    return [result, jnp.zeros((rows, heads, positions, 2), result.dtype)]


def _plain_tangent(*arrays: Any, scale: float, causal: bool) -> Any:
    inputs, tangents = arrays[:3], arrays[4:]
    return [jax.jvp(_formula(scale, causal), tuple(inputs), tuple(tangents))[1]]


def _plain_gradient(*arrays: Any, scale: float, causal: bool) -> Any:
    *inputs, _kept, given = arrays
    return list(jax.vjp(_formula(scale, causal), *inputs)[1](given))


def _called(name: str, results: Sequence[Any], arrays: Sequence[Any], numbers: Any) -> Any:
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in results]
    return jax.ffi.ffi_call(name, shapes)(*arrays, numbers=np.array(numbers, np.float32))


def _kernel(query: Any, key: Any, value: Any, *, scale: float, causal: bool) -> Any:
    rows, positions, heads, _ = query.shape
    results = [query.shape, (rows, heads, positions, 2)]
    return _called(ATTENTION, results, (query, key, value), (scale, causal))


def _kernel_gradient(*arrays: Any, scale: float, causal: bool) -> Any:
    return _called(
        ATTENTION_GRADIENT, [array.shape for array in arrays[:3]], arrays, (scale, causal)
    )


def _types(query: Any, *_: Any, **__: Any) -> Any:
    rows, positions, heads, _width = query.shape
    return [query, query.update(shape=(rows, heads, positions, 2))]


def _mapped(made: Primitive, arrays: Sequence[Any], places: Sequence[Any], **how: Any) -> Any:
    """The `vmap` rule: merge the batches into one, because rows are independent."""
    mapped = [pair for pair in zip(arrays, places, strict=True) if pair[1] is not None]
    size, rows = jnp.moveaxis(*mapped[0], 0).shape[:2]

    def together(array: Any, place: Any) -> Any:
        if place is None:
            array = jnp.broadcast_to(array, (size, *array.shape))
        else:
            array = jnp.moveaxis(array, place, 0)
        return array.reshape(size * array.shape[1], *array.shape[2:])

    results = made.bind(*map(together, arrays, places), **how)
    return [one.reshape(size, rows, *one.shape[1:]) for one in results], [0] * len(results)


def _for_one_device(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Choose the kernel, unless JAX divides arrays over devices."""
    rule = mlir.lower_fun(kernel, multiple_results=True)

    def choose(ctx: Any, **_: Any) -> Callable[..., Any] | None:
        return rule if is_on_one_device(ctx.module_context) else None

    return choose


def _operation(
    name: str, formula: Callable[..., Any], types: Any, choose: Any = None, *kernels: str
) -> Primitive:
    """An operation that computes several batches at once under `vmap`."""
    made = operation(name, formula, types, choose, kernels=kernels, several=True)
    batching.primitive_batchers[made] = functools.partial(_mapped, made)
    return made


_attention = _operation("attention", _plain, _types, _for_one_device(_kernel), ATTENTION)
_tangent = _operation("attention_tangent", _plain_tangent, lambda *avals, **_: [avals[0]])
_gradient = _operation(
    "attention_gradient",
    _plain_gradient,
    lambda *avals, **_: list(avals[:3]),
    _for_one_device(_kernel_gradient),
    ATTENTION_GRADIENT,
)


def _attention_jvp(inputs: Sequence[Any], tangents: Sequence[Any], **how: Any) -> Any:
    result, kept = _attention.bind(*inputs, **how)
    whole = map(ad.instantiate_zeros, tangents)
    (tangent,) = _tangent.bind(*inputs, kept, *whole, **how)
    # The kernel's residuals have no tangent: their derivative is part of the gradient.
    return [result, kept], [tangent, ad.Zero(jax.typeof(kept))]


def _tangent_transpose(given: Sequence[Any], *arrays: Any, **how: Any) -> Any:
    known, wanted = arrays[:4], arrays[4:]
    if isinstance(given[0], ad.Zero):
        return [None] * len(arrays)
    found = _gradient.bind(*known, given[0], **how)
    asked = map(ad.is_undefined_primal, wanted)
    return [None] * 4 + [one if ask else None for one, ask in zip(found, asked, strict=True)]


ad.primitive_jvps[_attention] = _attention_jvp
ad.primitive_transposes[_tangent] = _tangent_transpose

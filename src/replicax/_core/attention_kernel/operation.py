"""Attention and its gradient as operations of JAX, which the kernel computes.

There are three, so that all of JAX's transformations hold: attention, its tangent, which is linear
in the tangents of its inputs, and the transpose of that, which is its gradient. The kernel has
attention and the gradient; all else is what `formula.py` says. XLA would give the kernel whole
arrays where a program is divided over devices: there the formula stays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from replicax._core import lowering
from replicax._core.attention_kernel.formula import attend
from replicax._core.context import current_frame
from replicax._core.handlers.one_device import is_on_one_device, is_whole, varying_alike
from replicax._core.handlers.operation import operation
from replicax._cpu import kernels
from replicax._cpu.kernels import ATTENTION, ATTENTION_GRADIENT


@contextmanager
def on_this_machine(stays: bool) -> Generator[list[jax.export.DisabledSafetyCheck]]:
    """A `with` block for an export: if the program stays on this machine, it may use the kernel.

    Who loads such a program asks for the kernels before. The value is what the export has to let
    pass.
    """
    names = (ATTENTION, ATTENTION_GRADIENT) if stays else ()
    with lowering.exporting(*names):
        yield [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]


def is_for_kernel(scale: Any) -> bool:
    """Whether attention is computed by the kernel here: where arrays are those of one device."""
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
    """Attention, as `formula.attend` defines it, by the kernel; without bias and mask."""
    how = {"scale": float(query.shape[-1] ** -0.5 if scale is None else scale), "causal": is_causal}
    return _attention.bind(*varying_alike(query, key, value), **how)[0]


def _formula(scale: float, causal: bool) -> Callable[..., Any]:
    return functools.partial(attend, scale=scale, is_causal=causal)


def _plain(query: Any, key: Any, value: Any, *, scale: float, causal: bool) -> Any:
    """Attention without the kernel; the numbers that the kernel keeps are not needed then."""
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
    """The rows of all batches, as one batch: each row is computed by itself."""
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
    """The kernel, but not where JAX divides."""
    rule = mlir.lower_fun(kernel, multiple_results=True)

    def choose(ctx: Any, **_: Any) -> Callable[..., Any] | None:
        return rule if is_on_one_device(ctx.module_context) else None

    return choose


def _operation(
    name: str, formula: Callable[..., Any], types: Any, choose: Any = None, *kernels: str
) -> Primitive:
    """One that is computed at once for several batches if it is mapped."""
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
    # What the kernel keeps for the gradient is no result: whatever follows from it is in that.
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

"""What XLA:CPU gets for a convolution of JAX: the kernel, where it is better."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.interpreters import mlir

from replicax._core import lowering
from replicax._core.convolutions.forms import Kind, form_of
from replicax._core.convolutions.library import library
from replicax._core.convolutions.sharding import convolution, with_devices
from replicax._core.env import cores


def install() -> None:
    """Let convolutions go to the kernel, in all that is compiled for CPUs from now on."""
    lowering.choose_rule(lax.conv_general_dilated_p, "convolutions", _choose)


def _choose(ctx: Any, **params: Any) -> Callable[..., Any] | None:
    """The rule for a convolution that the kernel computes; not in programs that are exported.

    Who loads one of these may not have the kernel.
    """
    exported = ctx.module_context.lowering_parameters.for_export
    form, inner = form_of(*ctx.avals_in, **params), with_devices(ctx)
    # Each image is computed by one thread; XLA divides a few large images among many.
    few = form is None or 2 * form.images < cores()
    kernel = None if exported or few or inner is None else library()
    if kernel is None or form is None:
        return None
    numbers = form.numbers()
    usable = kernel.rx_convolution_usable((ctypes.c_int64 * len(numbers))(*numbers))
    return (lambda _, *operands, **how: _rule(inner, *operands, **how)) if usable else None


def _compute(lhs: jax.Array, rhs: jax.Array, **params: Any) -> jax.Array:
    form = form_of(lhs, rhs, **params)
    assert form is not None, "chosen for its form"
    if form.kind is Kind.INPUT_GRADIENT:
        rhs = lax.rev(rhs, range(rhs.ndim - 2))  # as JAX did before: XLA leaves out both
    result = jax.eval_shape(lambda a, b: lax.conv_general_dilated_p.bind(a, b, **params), lhs, rhs)
    return convolution(form, lhs, rhs, result.shape)


_rule = mlir.lower_fun(_compute, multiple_results=False)

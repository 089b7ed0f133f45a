"""What XLA:CPU gets for a convolution of JAX: the kernel, where it is better."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.extend.core.primitives import jit_p
from jax.interpreters import mlir

from replicax._core import lowering
from replicax._core.convolutions.forms import Form, Kind, form_of
from replicax._core.convolutions.library import TARGET, library
from replicax._core.convolutions.rectified import NAME
from replicax._core.convolutions.sharding import convolution, with_devices
from replicax._core.env import cores

_RECTIFIED = ["conv_general_dilated", "broadcast_in_dim", "add", "max"]


def install() -> None:
    """Let convolutions go to the kernel, in all that is compiled for CPUs from now on."""
    lowering.choose_rule(lax.conv_general_dilated_p, "convolutions", _choose, kernels=[TARGET])
    lowering.choose_rule(
        jit_p, "convolutions", _choose_rectified, kernels=[TARGET], cacheable=False
    )


def _choose(ctx: Any, **params: Any) -> Callable[..., Any] | None:
    """The rule for a convolution that the kernel computes."""
    return _by_kernel(ctx, form_of(*ctx.avals_in, **params))


def _choose_rectified(ctx: Any, *, name: str, jaxpr: Any, **how: Any) -> Callable[..., Any] | None:
    """The rule for an inner program that is a convolution, its bias and `relu`.

    One that a transformation of JAX made another program of is compiled as any other.
    """
    del how
    if name != NAME:
        return None
    equations = [one for one in jaxpr.eqns if one.primitive.name not in ("pvary", "pcast")]
    if [one.primitive.name for one in equations] != _RECTIFIED:
        return None
    images, kernel, bias = ctx.avals_in
    form = form_of(images, kernel, **equations[0].params)
    alike = equations[0].outvars[0].aval.shape == ctx.avals_out[0].shape and bias.ndim == 1
    return _by_kernel(ctx, form._replace(rectified=True)) if form and alike else None


def _by_kernel(ctx: Any, form: Form | None) -> Callable[..., Any] | None:
    """The rule that calls the kernel, if it is usable."""
    inner = with_devices(ctx)
    # Each image is computed by one thread; XLA divides a few large images among many.
    few = form is None or 2 * form.images < cores()
    kernel = None if few or inner is None else library()
    if kernel is None or form is None:
        return None
    numbers = form.numbers()
    if not kernel.rx_convolution_usable((ctypes.c_int64 * len(numbers))(*numbers)):
        return None
    compute = functools.partial(_compute, form, ctx.avals_out[0].shape)
    rule = mlir.lower_fun(compute, multiple_results=False)
    return lambda _, *operands, **how: rule(inner, *operands)


def _compute(form: Form, shape: tuple[int, ...], lhs: Any, rhs: Any, *bias: Any) -> jax.Array:
    if form.kind is Kind.INPUT_GRADIENT:
        rhs = lax.rev(rhs, range(rhs.ndim - 2))  # as JAX did before: XLA leaves out both
    return convolution(form, shape, lhs, rhs, *bias)

"""What XLA:CPU gets for a convolution of JAX: the kernel, where it is better."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.interpreters import mlir

from replicax._core import lowering
from replicax._core.convolutions.forms import Form, Kind, form_of
from replicax._core.convolutions.plain import plain
from replicax._core.convolutions.sharding import convolution, with_devices
from replicax._core.handlers.one_device import is_on_one_device
from replicax._cpu.kernels import CONVOLUTION, are_there

_FEW_CHANNELS, _FEW_PIXELS, _MANY_WEIGHTS = 4, 256, 1 << 18


def install() -> None:
    """Let convolutions of our programs for CPUs go to the kernel."""
    lowering.choose_rule(lax.conv_general_dilated_p, "convolutions", _choose, kernels=[CONVOLUTION])


def _choose(ctx: Any, **params: Any) -> Callable[..., Any] | None:
    """The rule for a convolution that the kernel computes, or other operations without one."""
    form = form_of(*ctx.avals_in, **params)
    if form is None:
        return None
    if not are_there():
        own = plain(form, ctx.avals_in[0].ndim)
        # Where JAX divides images over devices, each round of a loop would end in an all-reduce.
        divided = form.kind is Kind.WEIGHT_GRADIENT and not is_on_one_device(ctx.module_context)
        return None if own is None or divided else _lowered(own)
    inner = with_devices(ctx)
    if inner is None or _is_as_fast_with_xla(form):
        return None
    compute = functools.partial(_compute, form, ctx.avals_out[0].shape)
    rule = _lowered(compute)
    return lambda _, *operands, **how: rule(inner, *operands)


def _lowered(compute: Callable[..., Any]) -> Callable[..., Any]:
    return mlir.lower_fun(lowering.in_32_bits(compute), multiple_results=False)


def _is_as_fast_with_xla(form: Form) -> bool:
    """Whether XLA is faster, as benchmarks/convolutions.py measured.

    A gradient of images of few channels, with strides, leaves most of each vector empty. A gradient
    of a 1×1 kernel over few pixels takes longer to write than to compute; XLA writes whole rows.
    """
    if form.kind is Kind.INPUT_GRADIENT:
        strided = math.prod(form.strides) > 1
        return strided and form.groups == 1 and form.channels <= _FEW_CHANNELS
    pixels, weights = math.prod(form.size_out) * form.images, form.channels * form.channels_out
    is_product = form.kind is Kind.WEIGHT_GRADIENT and math.prod(form.kernel) == form.groups == 1
    return is_product and pixels <= _FEW_PIXELS and weights >= _MANY_WEIGHTS


def _compute(form: Form, shape: tuple[int, ...], lhs: Any, rhs: Any) -> jax.Array:
    if form.kind is Kind.INPUT_GRADIENT:
        rhs = lax.rev(rhs, range(rhs.ndim - 2))  # as JAX did before: XLA leaves out both
    if form.exchanged:
        return lax.rev(convolution(form, shape, rhs, lhs), range(rhs.ndim - 2))
    return convolution(form, shape, lhs, rhs)

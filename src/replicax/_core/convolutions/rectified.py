"""A convolution, its bias and `relu` as one operation, which the kernel computes in one go.

What is between them is an array as large as the result: it would be written, read and kept for the
gradient. The gradient of `relu` needs to know where its argument is positive; there its result is.

To JAX it is an inner program with a name. Where that meets a compiler for CPUs, rule.py knows it;
anywhere else it is what it says.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero

# Of the inner program: rule.py looks for it.
NAME = "rx_rectified_convolution"
_LAYOUTS = {3: ("NWC", "WIO", "NWC"), 4: ("NHWC", "HWIO", "NHWC")}


class How(NamedTuple):
    """How a kernel moves over images: along each of their dimensions, as for JAX's convolution."""

    strides: tuple[int, ...]
    padding: str | tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def rectified(images: Any, kernel: Any, bias: Any, how: How) -> Any:
    """`relu(convolution(images, kernel) + bias)`.

    Args:
        images: Images or sequences, channels last.
        kernel: Its dimensions, then channels of the images (of a group), then of the result.
        bias: A number for each channel of the result.
        how: Strides, padding and dilation.

    Returns:
        The result, of the same layout.
    """
    return rx_rectified_convolution(images, kernel, bias, how)


@functools.partial(jax.jit, static_argnums=3)
def rx_rectified_convolution(images: Any, kernel: Any, bias: Any, how: How) -> Any:
    """The same, under `NAME`."""
    return lax.max(_convolved(images, kernel, how) + bias, bias.dtype.type(0))


@functools.partial(rectified.defjvp, symbolic_zeros=True)
def _derivative(how: How, primals: Any, tangents: Any) -> tuple[Any, Any]:
    images, kernel, bias = primals
    result = rectified(images, kernel, bias, how)
    by_images, by_kernel, by_bias = tangents
    parts = [
        *([] if _none(by_images) else [_convolved(by_images, kernel, how)]),
        *([] if _none(by_kernel) else [_convolved(images, by_kernel, how)]),
        *(
            []
            if _none(by_bias)
            else [lax.broadcast_in_dim(by_bias, result.shape, (result.ndim - 1,))]
        ),
    ]
    tangent = functools.reduce(lax.add, parts) if parts else lax.full_like(result, 0)
    return result, lax.select(result > 0, tangent, lax.full_like(tangent, 0))


def _none(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


def _convolved(images: Any, kernel: Any, how: How) -> Any:
    return lax.conv_general_dilated(
        images, kernel, how.strides, how.padding, rhs_dilation=how.dilation,
        dimension_numbers=_LAYOUTS[images.ndim],
        feature_group_count=images.shape[-1] // kernel.shape[-2],
    )  # fmt: skip

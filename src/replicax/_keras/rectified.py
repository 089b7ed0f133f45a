"""Keras' convolutions whose activation is `relu`: with their bias one operation, on CPUs.

Only where oneDNN is used: XLA's own programs are no better for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import keras

from replicax._core.convolutions.library import library
from replicax._core.convolutions.rectified import How, rectified
from replicax._core.cpu_tuning import is_on
from replicax._core.lowering import has_known_sizes
from replicax._keras import _compat

_PADDING = {"same": "SAME", "valid": "VALID"}


def install() -> None:
    """Put the seam into Keras; a second call changes nothing."""
    for kind in (_compat.BaseConv, keras.layers.Conv1D):
        _compat.wrap(kind, "call", _together)


def _together(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, inputs: Any) -> Any:
        if not _is_relu(self) or not _is_usual(inputs) or not _is_here():
            return original(self, inputs)
        kernel, bias = map(keras.ops.convert_to_tensor, (self.kernel, self.bias))
        if not _fits(self, inputs, kernel) or not all(map(_is_usual, (kernel, bias))):
            return original(self, inputs)
        how = How(tuple(self.strides), _PADDING[self.padding], tuple(self.dilation_rate))
        return rectified(inputs, kernel, bias, how)

    return call


def _is_here() -> bool:
    """Whether programs are for CPUs, and the kernel computes their convolutions."""
    on = is_on("convolutions") and jax.default_backend() == "cpu"
    return on and library() is not None


def _is_relu(layer: Any) -> bool:
    """Whether a layer is a convolution of Keras as it comes, with a bias and `relu`."""
    if layer.activation is not keras.activations.relu or not layer.use_bias:
        return False
    stock = type(layer).convolution_op is _compat.BaseConv.convolution_op
    usual = layer.data_format == "channels_last" and layer.padding in _PADDING
    return stock and usual and layer.rank in (1, 2)


def _is_usual(operand: Any) -> bool:
    known = isinstance(operand, jax.Array) and has_known_sizes(operand)
    return known and operand.dtype == "float32"


def _fits(layer: Any, images: Any, kernel: Any) -> bool:
    """Whether there is a result; else Keras says what is wrong."""
    if images.ndim != layer.rank + 2 or images.shape[-1] % kernel.shape[-2]:
        return False
    axes = zip(images.shape[1:-1], kernel.shape, layer.dilation_rate, strict=False)
    return layer.padding == "same" or all(size > (taps - 1) * step for size, taps, step in axes)

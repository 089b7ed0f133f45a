"""Mapping of JAX's convolutions to the kernel's three operations and their sizes.

JAX writes the gradients of a convolution as convolutions. The gradient by the input dilates the
output's gradient by the strides, and reverses the kernel. The gradient by the kernel swaps batch
and channels, and strides and dilation.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

_ONE_ROW = 2  # of spatial dimensions: a sequence is an image of one row
_FEW_OF_A_GROUP = 8  # channels, which the kernel computes lane by lane
_TYPES = ("float32", "bfloat16")


class Kind(enum.IntEnum):
    """The kernel's operations, with their numbers in convolutions.c."""

    FORWARD = 0
    INPUT_GRADIENT = 1
    WEIGHT_GRADIENT = 2


class Form(NamedTuple):
    """A convolution of `images × height × width × channels`, as the kernel takes it.

    A gradient has the form of the convolution that it belongs to.
    """

    kind: Kind
    groups: int
    images: int
    size: tuple[int, int]
    channels: int
    size_out: tuple[int, int]
    channels_out: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]  # padding above and to the left; negative where images are cropped
    #: Whether the last dimension of the weights is the one that spans all groups.
    all_groups_last: bool
    #: Whether to swap the operands, and reverse the taps of the result.
    exchanged: bool = False

    @property
    def can_pair(self) -> bool:
        """Whether the kernel's sums have pairs of `bfloat16`: of channels, or of a row's pixels."""
        ends = [self.channels // self.groups, self.channels_out // self.groups]
        summed, kept = reversed(ends) if self.kind is Kind.INPUT_GRADIENT else ends
        even = self.kind is Kind.WEIGHT_GRADIENT or summed % 2 == 0
        return even and (self.groups == 1 or kept > _FEW_OF_A_GROUP)

    def numbers(self, *, rounded: bool = False, pairs: int = 0) -> list[int]:
        """The form as convolutions.c reads it.

        `rounded` rounds the weights to `bfloat16`. `pairs` is 1 where images are `bfloat16` and the
        result is `float32`, 2 where both are `bfloat16`.
        """
        inputs, outputs = self.channels // self.groups, self.channels_out // self.groups
        of_input = (
            self.kind is Kind.INPUT_GRADIENT
        )  # then input channels of all groups are adjacent
        shorter, longer = (outputs, self.channels) if of_input else (inputs, self.channels_out)
        across, along = (1, longer) if self.all_groups_last else (shorter, 1)
        apart_in, apart_out = (across, along) if of_input else (along, across)
        apart_groups = (inputs * apart_in) if of_input else (outputs * apart_out)
        return [
            *(self.kind, self.groups, self.images, *self.size, self.channels),
            *(*self.size_out, self.channels_out, *self.kernel, *self.strides, *self.dilation),
            *(*self.before, apart_groups, apart_out, apart_in, int(rounded), pairs),
        ]


def form_of(lhs: Any, rhs: Any, **params: Any) -> Form | None:
    """The form of a convolution of JAX; None for convolutions that XLA computes."""
    given, result = str(lhs.dtype), str(params["preferred_element_type"] or lhs.dtype)
    if given not in _TYPES or lhs.dtype != rhs.dtype or result not in ("float32", given):
        return None
    if lhs.ndim not in (3, 4):
        return None
    numbers, last = params["dimension_numbers"], lhs.ndim - 1
    plain = (0, last, *range(1, last))
    exchanged = (last, 0, *range(1, last))
    kernel_first = tuple(range(last - 1))
    dilated = any(step > 1 for step in params["lhs_dilation"])
    if (numbers.lhs_spec, numbers.out_spec) == (plain, plain):
        if numbers.rhs_spec[2:] != kernel_first or params["batch_group_count"] > 1:
            return None
        return (_input_gradient if dilated else _forward)(lhs, rhs, **params)
    if (numbers.lhs_spec, numbers.rhs_spec) == (exchanged, exchanged):
        if numbers.out_spec[2:] != kernel_first or params["feature_group_count"] > 1:
            return None
        return (_transposed_weight_gradient if dilated else _weight_gradient)(lhs, rhs, **params)
    return None


def _forward(lhs: Any, rhs: Any, **params: Any) -> Form | None:
    images, *size, channels = lhs.shape
    kernel, (before, after) = rhs.shape[:-2], zip(*params["padding"], strict=True)
    strides, dilation = params["window_strides"], params["rhs_dilation"]
    spans = [(taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True)]
    size_out = [
        (inside + low + high - span) // stride + 1
        for inside, low, high, span, stride in zip(size, before, after, spans, strides, strict=True)
    ]
    out = params["dimension_numbers"].rhs_spec[0]
    return _checked(
        Kind.FORWARD, params["feature_group_count"], images, size, channels, size_out,
        rhs.shape[out], kernel, strides, dilation, before, out == rhs.ndim - 1,
    )  # fmt: skip


def _input_gradient(lhs: Any, rhs: Any, **params: Any) -> Form | None:
    if any(step > 1 for step in params["window_strides"]):
        return None
    images, *size_out, channels_out = lhs.shape
    kernel, strides, dilation = rhs.shape[:-2], params["lhs_dilation"], params["rhs_dilation"]
    reach = [(taps - 1) * step for taps, step in zip(kernel, dilation, strict=True)]
    size = [
        (inside - 1) * stride + 1 + low + high - span
        for inside, stride, (low, high), span in zip(
            size_out, strides, params["padding"], reach, strict=True
        )
    ]
    before = [span - low for span, (low, _) in zip(reach, params["padding"], strict=True)]
    out = params["dimension_numbers"].rhs_spec[0]
    return _checked(
        Kind.INPUT_GRADIENT, params["feature_group_count"], images, size, rhs.shape[out], size_out,
        channels_out, kernel, strides, dilation, before, out == rhs.ndim - 1,
    )  # fmt: skip


def _weight_gradient(lhs: Any, rhs: Any, **params: Any) -> Form | None:
    images, *size, channels = lhs.shape
    _, *size_out, channels_out = rhs.shape
    strides, dilation = params["rhs_dilation"], params["window_strides"]
    kernel = [
        (inside + low + high - (outside - 1) * stride - 1) // step + 1
        for inside, outside, (low, high), stride, step in zip(
            size, size_out, params["padding"], strides, dilation, strict=True
        )
    ]
    before = [low for low, _ in params["padding"]]
    numbers = params["dimension_numbers"]
    return _checked(
        Kind.WEIGHT_GRADIENT, params["batch_group_count"], images, size, channels, size_out,
        channels_out, kernel, strides, dilation, before, numbers.out_spec[1] == lhs.ndim - 1,
    )  # fmt: skip


def _transposed_weight_gradient(lhs: Any, rhs: Any, **params: Any) -> Form | None:
    """The gradient by a transposed convolution's weights, with input and output swapped."""
    if params["batch_group_count"] > 1:
        return None
    images, *size_out, channels_out = lhs.shape
    _, *size, channels = rhs.shape
    strides, dilation = params["lhs_dilation"], params["window_strides"]
    if any(step > 1 for step in params["rhs_dilation"]):
        return None
    kernel = [
        ((outside - 1) * stride + low + high + 1 - inside) // step + 1
        for inside, outside, (low, high), stride, step in zip(
            size, size_out, params["padding"], strides, dilation, strict=True
        )
    ]
    before = [
        (taps - 1) * step - low
        for taps, step, (low, _) in zip(kernel, dilation, params["padding"], strict=True)
    ]
    numbers = params["dimension_numbers"]
    form = _checked(
        Kind.WEIGHT_GRADIENT, 1, images, size, channels, size_out, channels_out, kernel,
        strides, dilation, before, numbers.out_spec[0] == lhs.ndim - 1,
    )  # fmt: skip
    return form and form._replace(exchanged=True)


def _checked(
    kind: Kind, groups: int, images: int, size: Any, channels: int, size_out: Any,
    channels_out: int, kernel: Any, strides: Any, dilation: Any, before: Any, last: bool,
) -> Form | None:  # fmt: skip
    """The form, with sequences as images of one row; None if a size is zero."""
    if min(images, channels, channels_out, *size, *size_out, *kernel) < 1:
        return None
    rows: tuple[Any, ...] = () if len(size) == _ONE_ROW else (1,)
    return Form(
        kind, groups, images, (*rows, *size), channels, (*rows, *size_out), channels_out,
        (*rows, *kernel), (*rows, *strides), (*rows, *dilation),
        (0, *before) if rows else tuple(before), last,
    )  # fmt: skip

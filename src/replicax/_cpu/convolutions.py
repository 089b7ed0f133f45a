"""Convolutions on CPUs by a kernel in C, or by other operations of JAX without it.

The kernel (`src/convolutions.c`) computes a convolution of JAX and its two gradients, which are
convolutions in JAX, if they have one of its forms (convolution_forms.py).

Over several devices each device computes its own part, without a gather. XLA's partitioner gives an
unknown kernel whole arrays on every device, so this file tells it which dimensions may be divided:
images, and without groups both kinds of channels. A sum over a divided dimension (the images, for a
weight gradient) ends in an all-reduce.

JAX's cache key of a program on disk contains a memory address for each partitioned operation, which
stands for the operation's code. Ours state their code by a number (`_edition`), so JAX may omit the
address, and another process finds the program. Operations of other libraries need the address: a
program with one keeps it, and is compiled at each start.

Without the kernel, depthwise convolutions become sums of shifted slices, and convolutions with one
tap become matrix products. On MobileNetV2 these two take a step from 1,028 ms to about 200 ms.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from replicax._cpu import convolution_forms, lowering
from replicax._cpu.convolution_forms import Form, Kind, form_of
from replicax._cpu.kernels import CONVOLUTION, SOURCES, are_there, multiplies_pairs
from replicax._cpu.lowering import is_on_one_device, own_name
from replicax._cpu.tuning import is_on

_FEW_CHANNELS, _FEW_PIXELS, _MANY_WEIGHTS = 4, 256, 1 << 18
_MOST_TAPS = 49  # of a convolution as slices, because the program grows with the taps
_RANK_OF_IMAGES = 4  # images × height × width × channels

_IMAGES, _IN, _OUT = "images", "channels", "channels_out"
_SUMMED = {Kind.FORWARD: _IN, Kind.INPUT_GRADIENT: _OUT, Kind.WEIGHT_GRADIENT: _IMAGES}
_Shape = tuple[int, ...]
_CODE = (Path(convolution_forms.__file__), Path(__file__), *SOURCES)

_OWN = own_name(lax.conv_general_dilated_p)
_OF_OTHERS = "custom_partitioning"  # the primitive; ours appear only when a program is lowered
_SETTING = "jax_remove_custom_partitioning_ptr_from_cache_key"


def install() -> None:
    """Register the kernel as the rule for convolutions of our programs on CPUs."""
    lowering.choose_rule(lax.conv_general_dilated_p, "convolutions", _choose, kernels=[CONVOLUTION])


def _choose(ctx: Any, **params: Any) -> Callable[..., Any] | None:
    """The rule for a convolution: the kernel, or other operations without it; None for XLA's."""
    form = form_of(*ctx.avals_in, **params)
    if form is None:
        return None
    if not are_there():
        is_rounded = ctx.avals_out[0].dtype == ctx.avals_in[0].dtype
        own = plain(form, ctx.avals_in[0].ndim) if is_rounded else None
        # If JAX divides images over devices, each round of the loop would end in an all-reduce.
        divided = form.kind is Kind.WEIGHT_GRADIENT and not is_on_one_device(ctx.module_context)
        return None if own is None or divided else _lowered(own)
    inner = with_devices(ctx)
    if inner is None or _is_as_fast_with_xla(form):
        return None
    compute = functools.partial(_compute, form, ctx.avals_out[0])
    rule = mlir.lower_fun(compute, multiple_results=False)
    return lambda _, *operands, **how: rule(inner, *operands)


def rounding_inside(equations: Sequence[Any]) -> list[Any]:
    """Let the kernel round the weights of `bfloat16` convolutions.

    XLA would write the rounded weights to memory for each convolution, and read them again.
    """
    made_by: dict[int, Any] = {}
    found = []
    for equation in equations:
        if equation.primitive is lax.conv_general_dilated_p and is_on("convolutions"):
            found.append(_rounding_inside(equation, made_by))
        else:
            found.append(equation)
            made_by.update((id(result), equation) for result in equation.outvars)
    return found


def _rounding_inside(equation: Any, made_by: Mapping[int, Any]) -> Any:
    images, weights = equation.invars
    made, turned = made_by.get(id(weights)), ()
    if made is not None and made.primitive is lax.rev_p:  # in an input gradient
        made, turned = made_by.get(id(made.invars[0])), made.params["dimensions"]
    if made is None or made.primitive is not lax.convert_element_type_p:
        return equation
    types = [str(atom.aval.dtype) for atom in (*made.invars, *made.outvars)]
    form = _form_by_kernel(images.aval, weights.aval, **equation.params)
    if types != ["float32", "bfloat16"] or form is None or form.kind is Kind.WEIGHT_GRADIENT:
        return equation
    params = {**equation.params, "turned": turned}
    return equation.replace(primitive=_ROUNDING, invars=[images, *made.invars], params=params)


def has_32_bits(equation: Any) -> bool:
    """Whether the kernel computes a convolution of ours and has its result in 32 bits."""
    form = _form_by_kernel(equation.invars[0].aval, equation.invars[1].aval, **equation.params)
    return form is not None and not (form.can_pair and multiplies_pairs())


def _form_by_kernel(images: Any, weights: Any, *, turned: Any = (), **params: Any) -> Form | None:
    """The form of a convolution that the kernel computes faster than XLA."""
    del turned
    if not are_there() or not lowering.has_known_sizes(images, weights):
        return None
    form = form_of(images, weights.update(dtype=images.dtype), **params)
    return None if form is None or _is_as_fast_with_xla(form) else form


def _round_first(lhs: Any, rhs: Any, *, turned: Sequence[int], **params: Any) -> Any:
    weights = lax.rev(rhs.astype(lhs.dtype), turned)
    return lax.conv_general_dilated_p.bind(lhs, weights, **params)


def _type_of_rounding(lhs: Any, rhs: Any, *, turned: Sequence[int], **params: Any) -> Any:
    del turned
    narrow = rhs.update(dtype=lhs.dtype)
    return lax.conv_general_dilated_p.abstract_eval(lhs, narrow, **params)[0]


def _choose_rounding(ctx: Any, *, turned: Sequence[int], **params: Any) -> Any:
    images, weights = ctx.avals_in
    form = form_of(images, weights.update(dtype=images.dtype), **params)
    inner = with_devices(ctx)
    if form is None or inner is None:
        return None

    def compute(lhs: Any, rhs: Any) -> Any:
        return _compute(form, ctx.avals_out[0], lhs, lax.rev(rhs, turned))

    rule = mlir.lower_fun(compute, multiple_results=False)
    return lambda _, *operands, **how: rule(inner, *operands)


_ROUNDING = lowering.operation(
    "convolution_rounding", _round_first, _type_of_rounding, _choose_rounding, kernels=[CONVOLUTION]
)
BY_KERNEL = (_OWN, _ROUNDING.name)


def _lowered(compute: Callable[..., Any]) -> Callable[..., Any]:
    return mlir.lower_fun(lowering.in_32_bits(compute), multiple_results=False)


def _is_as_fast_with_xla(form: Form) -> bool:
    """Whether XLA is at least as fast, as measured by benchmarks/convolutions.py.

    With strides, the gradient by images of few channels leaves most of each vector empty. The
    gradient of a 1×1 kernel over few pixels is bound by writing; XLA writes whole rows.
    """
    if form.kind is Kind.INPUT_GRADIENT:
        strided = math.prod(form.strides) > 1
        return strided and form.groups == 1 and form.channels <= _FEW_CHANNELS
    pixels, weights = math.prod(form.size_out) * form.images, form.channels * form.channels_out
    is_product = form.kind is Kind.WEIGHT_GRADIENT and math.prod(form.kernel) == form.groups == 1
    return is_product and pixels <= _FEW_PIXELS and weights >= _MANY_WEIGHTS


def _compute(form: Form, aval: Any, lhs: Any, rhs: Any) -> jax.Array:
    result = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    if form.kind is Kind.INPUT_GRADIENT:
        rhs = lax.rev(rhs, range(rhs.ndim - 2))  # undoes JAX's reversal; XLA removes both
    if form.exchanged:
        return lax.rev(convolution(form, result, rhs, lhs), range(rhs.ndim - 2))
    return convolution(form, result, lhs, rhs)


def convolution(form: Form, result: jax.ShapeDtypeStruct, *operands: Any) -> Any:
    """A convolution of this form, with such a result; partitioned over devices.

    Weights of `bfloat16` images may be `float32`, and so may the result.
    """
    # CPUs with and without instructions for pairs share no program on disk.
    numbers = np.array([*form.numbers(pairs=multiplies_pairs()), _edition()], np.int32)
    return _divided(form, result, *operands, numbers)


def with_devices(ctx: Any) -> Any:
    """JAX's lowering context with devices, for `convolution`; None where it cannot be used.

    JAX gives the devices of a program only to its own partitioned operations. Their number is
    enough here: any mesh of this many devices can describe how arrays are divided. A mesh whose
    axes all have one prime size describes every division.
    """
    module = ctx.module_context
    context = module.axis_context
    if isinstance(context, mlir.SPMDAxisContext):
        return ctx if set(context.manual_axes) == set(context.mesh.axis_names) else None
    if not isinstance(context, mlir.ShardingContext):
        return None
    devices, count = jax.devices("cpu"), context.num_devices
    prime = next((number for number in range(2, count) if count % number == 0), count)
    axes = round(math.log(count, prime)) if count > 1 else 1
    if len(devices) < count or prime**axes != count:
        return None
    mesh = AbstractMesh((prime,) * axes, tuple(f"axis_{number}" for number in range(axes)))
    known = mlir.ShardingContext(count, tuple(devices[:count]), mesh)
    return ctx.replace(module_context=module.replace(axis_context=known))


def _here(form: Form, result: jax.ShapeDtypeStruct, *operands: Any) -> Any:
    images, other = operands[:-1]
    return call(form, result.shape, images, other, result.dtype).astype(result.dtype)


def call(form: Form, shape: _Shape, images: Any, other: Any, dtype: Any) -> Any:
    """Call the kernel, with a result of this dtype or of `float32`."""
    rounded, pairs, widest = other.dtype != images.dtype, 0, np.dtype(np.float32)
    if images.dtype == jnp.bfloat16 and form.can_pair and multiplies_pairs():
        is_sum = form.kind is Kind.WEIGHT_GRADIENT or dtype == widest
        pairs = 1 if is_sum else 2
        if form.kind is not Kind.WEIGHT_GRADIENT:
            other = other.astype(widest)
    else:
        images, other = images.astype(widest), other.astype(widest)
    # JAX's cache key has the address of this call's form, or nothing (`found_again`). The last
    # operand, the numbers of the form, distinguishes programs of different forms.
    kernel = jax.ffi.ffi_call(
        CONVOLUTION, jax.ShapeDtypeStruct(shape, dtype if pairs > 1 else widest)
    )
    return kernel(
        images, other, form=np.array(form.numbers(rounded=rounded, pairs=pairs), np.int64)
    )


@functools.cache
def _edition() -> int:
    """A checksum of this code, which is part of the programs that are cached on disk."""
    code = b"".join(path.read_bytes() for path in _CODE)
    return zlib.crc32(code) & 0x7FFFFFFF


def _labels(form: Form, rank: int) -> tuple[list[str], ...]:
    """Names of the dimensions of operands and result. Equal names are divided alike."""
    inside, outside, kernel = ([f"{name}_{i}" for i in range(rank - 2)] for name in "xyk")
    source, target = [_IMAGES, *inside, _IN], [_IMAGES, *outside, _OUT]
    ends = ["some_in", "some_out"] if form.groups > 1 else [_IN, _OUT]
    turned = form.all_groups_last == (form.kind is Kind.INPUT_GRADIENT)
    weights = [*kernel, *(reversed(ends) if turned else ends)]
    if form.kind is Kind.FORWARD:
        return source, weights, ["number"], target
    if form.kind is Kind.INPUT_GRADIENT:
        return target, weights, ["number"], source
    return source, target, ["number"], weights


def _rule(form: Form, _result: Any, _mesh: Any, types: Sequence[Any], _types: Any) -> Any:
    labels = _labels(form, len(types[0].shape))
    *operands, result = (" ".join(names) for names in labels)
    divided = _divisible(form)
    summed = tuple(name for name in divided if name == _SUMMED[form.kind])
    fixed = tuple(dict.fromkeys(name for names in labels for name in names if name not in divided))
    how = {"reduction_factors": summed, "need_replication_factors": fixed}
    return f"{', '.join(operands)} -> {result}", how


def _divisible(form: Form) -> tuple[str, ...]:
    return (_IMAGES,) if form.groups > 1 else (_IMAGES, _IN, _OUT)


def _partition(
    form: Form, whole: jax.ShapeDtypeStruct, mesh: Any, operands: Any, result: Any
) -> Any:
    labels = _labels(form, len(operands[0].shape))
    axes = _axes(form, mesh, zip(labels, (*operands, result), strict=True))
    parts = {name: math.prod(mesh.shape[axis] for axis in axes[name]) for name in axes}
    own = form._replace(
        images=form.images // parts[_IMAGES],
        channels=form.channels // parts[_IN],
        channels_out=form.channels_out // parts[_OUT],
    )
    shape = [size // parts.get(name, 1) for name, size in zip(labels[-1], whole.shape, strict=True)]
    part = jax.ShapeDtypeStruct(tuple(shape), whole.dtype)

    def on_each(images: Any, other: Any, numbers: Any) -> Any:
        over = axes[_SUMMED[form.kind]]
        if not over:
            return _here(own, part, images, other, numbers)
        summand = call(own, part.shape, images, other, np.float32)
        return lax.psum(summand, over).astype(whole.dtype)

    specs = [PartitionSpec(*(axes.get(name) or None for name in names)) for names in labels]
    *inside, out = (NamedSharding(mesh, spec) for spec in specs)
    return mesh, on_each, out, tuple(inside)


def _axes(form: Form, mesh: Any, arrays: Any) -> Mapping[str, tuple[str, ...]]:
    """The mesh axes over which each dimension is divided, taken from the first array that has them.

    An axis divides one dimension at most, and only dimensions that it divides evenly.
    """
    axes: dict[str, tuple[str, ...]] = dict.fromkeys((_IMAGES, _IN, _OUT), ())
    for names, array in arrays:
        spec: Any = getattr(array.sharding, "spec", ())
        for name, size, wished in zip(names, array.shape, spec, strict=False):
            over = (wished,) if isinstance(wished, str) else tuple(wished or ())
            taken = any(axis in others for others in axes.values() for axis in over)
            fits = size % math.prod(mesh.shape[axis] for axis in over) == 0
            if name in _divisible(form) and not axes[name] and fits and not taken:
                axes[name] = over
    return axes


_divided = custom_partitioning(_here, static_argnums=(0, 1))
_divided.def_partition(_partition, sharding_rule=_rule)


def found_again(names: Collection[str]) -> contextlib.AbstractContextManager[object]:
    """Compile a program in a `with` block under a cache key without addresses, in this thread.

    `names` are those of its operations. No-op if none is a convolution, or one is partitioned by
    another library, or if this JAX has no such setting per thread.
    """
    state: Any = getattr(jax.config, "_value_holders", {}).get(_SETTING)
    if not set(BY_KERNEL).intersection(names) or _OF_OTHERS in names or state is None:
        return contextlib.nullcontext()
    return state(True)


def plain(form: Form, rank: int) -> Callable[..., Any] | None:
    """A function that computes a convolution by other operations, called like its primitive.

    None for a convolution that stays with XLA. `rank` is the number of dimensions of the operands.
    """
    once = math.prod(form.kernel) == math.prod(form.strides) == 1 and not any(form.before)
    if once and form.groups == 1 and form.size == form.size_out:
        return _sum_over_pixels if form.kind is Kind.WEIGHT_GRADIENT else _product
    depthwise = form.groups == form.channels == form.channels_out > 1
    if not depthwise or rank != _RANK_OF_IMAGES or math.prod(form.kernel) > _MOST_TAPS:
        return None
    return _kernel_gradient if form.kind is Kind.WEIGHT_GRADIENT else _shifted


def _product(lhs: Any, rhs: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    inputs = dimension_numbers.rhs_spec[1] - (rhs.ndim - 2)
    weights = rhs.reshape(rhs.shape[-2:])
    return lax.dot_general(lhs, weights, (((lhs.ndim - 1,), (inputs,)), ((), ())))


def _sum_over_pixels(lhs: Any, rhs: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    pixels = tuple(range(lhs.ndim - 1))
    inputs, outputs = dimension_numbers.out_spec[:2]
    first, second = (lhs, rhs) if inputs < outputs else (rhs, lhs)
    found = lax.dot_general(first, second, ((pixels, pixels), ((), ())))
    return found.reshape(*(1,) * (lhs.ndim - 2), *found.shape)


def _shifted(
    lhs: Any, rhs: Any, *, window_strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any,
    **_: Any,
) -> Any:  # fmt: skip
    padded, kernel = _padded(lhs, padding, lhs_dilation), rhs.shape[:-2]
    taps = rhs.reshape(*kernel, lhs.shape[-1])
    spans = [(size - 1) * gap + 1 for size, gap in zip(kernel, rhs_dilation, strict=True)]
    sizes = [
        (whole - span) // stride + 1
        for whole, span, stride in zip(padded.shape[1:-1], spans, window_strides, strict=True)
    ]
    total: Any = 0.0
    for tap in itertools.product(*map(range, kernel)):
        first = [place * gap for place, gap in zip(tap, rhs_dilation, strict=True)]
        total += _slice(padded, first, sizes, window_strides) * taps[tap]
    return total


def _kernel_gradient(
    lhs: Any, rhs: Any, *, window_strides: Any, padding: Any, rhs_dilation: Any,
    dimension_numbers: Any, **_: Any,
) -> Any:  # fmt: skip
    """Loop over the rows of all images: a sum over whole slices takes ten times as long."""
    padded, (rows, columns) = _padded(lhs, padding, (1, 1)), rhs.shape[1:3]
    (down, right), (gap, gap_right) = window_strides, rhs_dilation
    height, width = (
        (whole - (size - 1) * each - 1) // stride + 1
        for whole, size, each, stride in zip(
            padded.shape[1:3], (rows, columns), rhs_dilation, window_strides, strict=True
        )
    )

    def add_row(row: Any, sums: list[Any]) -> list[Any]:
        slopes = lax.dynamic_index_in_dim(rhs, row, 1, keepdims=False)
        added = []
        for place in range(height):
            line = lax.dynamic_index_in_dim(padded, row * gap + place * down, 1, keepdims=False)
            for j in range(width):
                part = _slice(line, [j * right], [columns], [gap_right])
                added.append((part * slopes).sum(0))
        return [old + new for old, new in zip(sums, added, strict=True)]

    zeros = [jnp.zeros((columns, lhs.shape[-1]), lhs.dtype)] * (height * width)
    sums = lax.fori_loop(0, rows, add_row, zeros)
    found = jnp.stack([one.sum(0) for one in sums]).reshape(height, width, -1)
    one, channels = dimension_numbers.out_spec[:2]
    return jnp.expand_dims(found, 2 if one < channels else 3)


def _padded(images: Any, padding: Any, dilation: Sequence[int]) -> Any:
    edges = [(low, high, gap - 1) for (low, high), gap in zip(padding, dilation, strict=True)]
    return lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0), *edges, (0, 0, 0)])


def _slice(array: Any, first: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Any:
    """Slice all dimensions but the first and the last."""
    ends = [
        start + (size - 1) * stride + 1
        for start, size, stride in zip(first, sizes, strides, strict=True)
    ]
    return lax.slice(
        array,
        [0, *first, 0],
        [array.shape[0], *ends, array.shape[-1]],
        [1, *strides, 1],
    )

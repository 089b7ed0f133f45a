"""Products and sums on CPUs: swapped operands instead of a transpose; a kernel for many rows.

The gradient of a weight is both. JAX writes `transpose(dot(g, x))`, and XLA:CPU makes `dot(x, g)`
of it, except if a weight has more than two axes: then it copies `g` transposed, once for each
weight that `x` is multiplied with. It also does so only after dividing a program over devices, when
the all-reduce of the global view is between the two, and the optimizer reads the sum across its
rows, which is slow.

`dot(x, g)` sums over the rows of a batch. XLA first copies one of the arrays transposed;
`src/products.c` multiplies the arrays as they are.

Products of `bfloat16` are convolutions of one tap, if the CPU multiplies pairs of such numbers.

Sums of 16 bits are computed in 32. XLA:CPU rounds the sum after each number, which takes 10 to 50
times as long and loses the sum of many rows. The gradient of a bias is such a sum.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import mlir

from replicax._cpu import kernels, lowering
from replicax._cpu.convolution_forms import Form, Kind
from replicax._cpu.convolutions import call
from replicax._cpu.kernels import CONVOLUTION, ROW_PRODUCTS
from replicax._cpu.lowering import is_on_one_device
from replicax._cpu.tuning import is_on

_LEAST_ROWS = 1024
_VECTOR, _WIDEST = 16, 128  # widths are multiples of the one and at most the other
_LEAST_FILLED = 256  # columns; with fewer, copying rows to fill them takes as long as multiplying


class _Least(NamedTuple):
    """The smallest products of `bfloat16` that the kernel multiplies faster than XLA."""

    products: int
    summed: int  # numbers that are summed to one of the result
    rows: int
    rows_turned: int  # where weights are transposed
    rows_summed: int  # where the sum is over the rows


_OF_PAIRS = _Least(1 << 23, 1, 64, 256, 1024)
_OF_TILES = _Least(1 << 20, 48, 32, 16, 128)


def with_products_turned(
    step: Callable[[Any, Any], Any], platform: str
) -> Callable[[Any, Any], Any]:
    """The same step, with swapped products if `platform` is "cpu"."""

    def turned_step(state: Any, batch: Any) -> Any:
        closed, shapes = jax.make_jaxpr(step, return_shape=True)(state, batch)
        results = jaxpr_as_fun(turned_on(platform, closed))(*jax.tree.leaves((state, batch)))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return turned_step if platform == "cpu" else step


def turned_on(platform: str, closed: ClosedJaxpr) -> ClosedJaxpr:
    """`turned` if `platform` is "cpu" and the part "products" is on; else the program itself."""
    return turned(closed) if platform == "cpu" and is_on("products") else closed


def uses_in(jaxpr: Any) -> Counter[int]:
    """How often operations and results of a program use each value, by its `id`."""
    atoms = [atom for equation in jaxpr.eqns for atom in equation.invars]
    return Counter(map(id, [*atoms, *jaxpr.outvars]))


def turned(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Replace transposed products by products with swapped operands; inner programs stay."""
    jaxpr = closed.jaxpr
    uses = uses_in(jaxpr)
    equations: list[Any] = []
    products: dict[int, int] = {}  # indices in `equations`, by the `id` of their results
    for equation in jaxpr.eqns:
        source = next(map(id, equation.invars), 0)
        place = products.get(source)
        if place is not None and uses[source] == 1 and _exchanges(equation, equations[place]):
            product, equations[place] = equations[place], None
            equation = _other_way_round(product, equation)
        elif equation.primitive.name == "dot_general":
            products[id(equation.outvars[0])] = len(equations)
        equations.append(equation)
    left = [equation for equation in equations if equation is not None]
    return closed.replace(jaxpr=jaxpr.replace(eqns=left))


def _exchanges(equation: Any, product: Any) -> bool:
    """Whether an equation is the transpose that swapping the product's operands would replace."""
    if equation.primitive.name != "transpose":
        return False
    (contracted, _), (batch, _) = product.params["dimension_numbers"]
    rank, count = product.outvars[0].aval.ndim, len(batch)
    left = product.invars[0].aval.ndim - count - len(contracted)
    order = (*range(count), *range(count + left, rank), *range(count, count + left))
    return is_plain(product.params) and tuple(equation.params["permutation"]) == order


def is_plain(params: Mapping[str, Any]) -> bool:
    """Whether a product has no algorithm and no sharding among its parameters."""
    precision, layout = params["precision"], params["out_sharding"]
    undivided = layout is None or not any(layout.spec)
    return undivided and (precision is None or isinstance(precision, tuple))


def _other_way_round(product: Any, transpose: Any) -> Any:
    (left, right), (left_batch, right_batch) = product.params["dimension_numbers"]
    precision: Sequence[Any] | None = product.params["precision"]
    params = {
        **product.params,
        "dimension_numbers": ((right, left), (right_batch, left_batch)),
        "precision": precision and precision[::-1],
    }
    return product.replace(invars=product.invars[::-1], outvars=transpose.outvars, params=params)


def install() -> None:
    """Register the kernels for products of our programs on CPUs."""
    names = [CONVOLUTION, ROW_PRODUCTS]
    lowering.choose_rule(lax.dot_general_p, "products", _choose, kernels=names)
    for primitive in (lax.reduce_sum_p, lax.cumsum_p):
        compute = lowering.in_32_bits(primitive.bind)
        lowering.replace(primitive, "products", _is_narrow, compute)


def _is_narrow(operand: Any, **params: Any) -> bool:
    del params
    return operand.dtype in (jnp.bfloat16, np.float16)


def _choose(ctx: Any, **params: Any) -> Callable[..., Any] | None:
    """The kernel's rule for products that it covers; None for all others."""
    if not is_on_one_device(ctx.module_context) or not kernels.are_there():
        return None
    if covers(*ctx.avals_in, **params):
        return _RULE
    form = form_of(*ctx.avals_in, **params) if kernels.multiplies_pairs() else None
    if form is None:
        return None
    (aval,) = ctx.avals_out
    return mlir.lower_fun(functools.partial(_in_pairs, form, aval.shape), multiple_results=False)


def has_32_bits(product: Any) -> bool:
    """Whether a product of `bfloat16` is computed in 32 bits and rounded: without pairs, by XLA."""
    return is_plain(product.params) and not kernels.multiplies_pairs()


def form_of(left: Any, right: Any, *, dimension_numbers: Any, **params: Any) -> Form | None:
    """The convolution that a product of `bfloat16` is; None for products that XLA computes."""
    contracted, batch = (tuple(map(tuple, axes)) for axes in dimension_numbers)
    types = {str(one) for one in (left.dtype, right.dtype, params["preferred_element_type"])}
    if types - {"None"} != {"bfloat16"} or any(batch) or not is_plain(params):
        return None
    count = len(contracted[0])
    first = tuple(range(count))
    last_left, last = (tuple(range(array.ndim - count, array.ndim)) for array in (left, right))
    summed = math.prod(left.shape[axis] for axis in contracted[0])
    width_left, width = left.size // summed, right.size // summed
    by_rows = contracted == (first, first)
    # A tile has 4 to 16 pairs of a row, without rest; of columns it may have fewer.
    is_tiled = by_rows or any(summed % (2 * pairs) == 0 for pairs in range(4, 17))
    tiles = kernels.multiplies_tiles()
    least = _OF_TILES if is_tiled and tiles else _OF_PAIRS
    if width_left * width * summed < least.products or summed < least.summed:
        return None
    if by_rows:
        kind, rows, ends = Kind.WEIGHT_GRADIENT, summed, (width_left, width)
        fits = summed >= least.rows_summed
    else:
        # Zeros fill the last tile of 32 numbers, or the last pair.
        whole = 32 if tiles else 2
        rest = 0 if is_tiled or width < _LEAST_FILLED or summed < 32 else -summed % whole
        kind, rows, ends = Kind.FORWARD, width_left, (summed + rest, width)
        fits = contracted[0] == last_left and contracted[1] in (first, last)
        fits = fits and rows >= (least.rows if contracted[1] == first else least.rows_turned)
    row, one = (1, rows), (1, 1)
    leads = contracted[1] == first
    form = Form(kind, 1, 1, row, ends[0], row, ends[1], one, one, one, (0, 0), leads)
    return form if fits and form.can_pair else None


def _in_pairs(form: Form, shape: Any, left: Any, right: Any, **_: Any) -> Any:
    """A product as a convolution: its rows are the pixels of one image."""
    rows = form.size[1]
    if form.kind is Kind.WEIGHT_GRADIENT:
        other, result = right.reshape(1, 1, rows, form.channels_out), (form.channels,)
    else:
        summed, result = left.size // rows, (1, 1, rows)
        by_columns = form.all_groups_last
        weights = right.reshape((summed, -1) if by_columns else (-1, summed))
        left = _filled(left.reshape(rows, summed), 1, form.channels)
        other = _filled(weights, int(not by_columns), form.channels)
    images = left.reshape(1, 1, rows, form.channels)
    found = call(form, (*result, form.channels_out), images, other, left.dtype)
    return found.reshape(shape).astype(left.dtype)


def _filled(matrix: Any, axis: int, size: int) -> Any:
    """The matrix with further zeros along an axis."""
    missing = size - matrix.shape[axis]
    if not missing:
        return matrix
    shape = [matrix.shape[0], missing] if axis else [missing, matrix.shape[1]]
    # XLA pads element by element, and concatenates whole rows.
    return jnp.concatenate([matrix, jnp.zeros(shape, matrix.dtype)], axis)


def covers(left: Any, right: Any, *, dimension_numbers: Any, **params: Any) -> bool:
    """Whether a product sums over the rows of two arrays that have many, and few columns."""
    contracted, batch = dimension_numbers
    rows = tuple(range(len(contracted[0])))
    if any(map(len, batch)) or any(tuple(axes) != rows for axes in contracted):
        return False
    types = {left.dtype, right.dtype, np.dtype(params["preferred_element_type"] or np.float32)}
    if types != {np.dtype(np.float32)} or not is_plain(params):
        return False
    widths = [math.prod(array.shape[len(rows) :]) for array in (left, right)]
    fit = all(width % _VECTOR == 0 and 0 < width <= _WIDEST for width in widths)
    return fit and math.prod(left.shape[: len(rows)]) >= _LEAST_ROWS


def _compute(left: Any, right: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    axes = len(dimension_numbers[0][0])
    widths = [array.shape[axes:] for array in (left, right)]
    matrices = [
        array.reshape(-1, math.prod(width))
        for array, width in zip((left, right), widths, strict=True)
    ]
    shape = jax.ShapeDtypeStruct([math.prod(width) for width in widths], np.float32)
    return jax.ffi.ffi_call(ROW_PRODUCTS, shape)(*matrices).reshape(*widths[0], *widths[1])


_RULE = mlir.lower_fun(_compute, multiple_results=False)

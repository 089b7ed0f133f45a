"""Loops on CPUs: sums of products move behind the loop; `bfloat16` arrays are cut as integers.

The gradient of a recurrent layer's weights is a sum of one product of matrices per round. One
product of the rows of all rounds takes less time, and no round reads and writes the sum. The same
holds for the sum of rows that is the gradient of its bias.

XLA:CPU has `bfloat16` only as a type of arrays in memory. It computes even slices and their updates
in 32 bits: each round of a `lax.scan` converts the results of all rounds to `float32` and back, and
what all rounds read becomes `float32` before the loop. Of integers it reads and writes the slice
alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal, Var, new_jaxpr_eqn, no_effects

from replicax._cpu import lowering, products
from replicax._cpu.tuning import is_on

_MOST_ROWS = 1024  # of a round; products of more rows are as fast one by one
_NARROW, _BITS = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.uint16)
# In `float16` the sum over all rounds may overflow where those of the rounds do not.
_WIDE_RANGE = {jnp.dtype(one) for one in (jnp.bfloat16, jnp.float32, jnp.float64)}
_LINEAR = frozenset(
    ("broadcast_in_dim", "convert_element_type", "reduce_sum", "reshape", "squeeze", "transpose")
)


def install() -> None:
    """Register the rule for `dynamic_update_slice` of `bfloat16` in our programs on CPUs."""
    lowering.replace(lax.dynamic_update_slice_p, "loops", _is_narrow, _update_bits)


class _Sum(NamedTuple):
    """A carried array to which each round adds a product or a sum, or what is made of one."""

    place: int  # among the carried arrays
    addition: Any
    source: Any  # the product or the sum
    chain: Sequence[Any]  # of linear operations between the two


def sums_behind(equation: Any) -> Sequence[Any]:
    """Replace a scan that carries sums of products by a scan without them, and one product each.

    The factors are stacked, which takes at most as much memory as what the scan stacks already.
    """
    params = equation.params
    # Without effects, a loop that has no results left may go.
    if equation.primitive is not lax.scan_p or not is_on("loops") or equation.effects:
        return [equation]
    body, length = products.turned(params["jaxpr"]), params["length"]
    inputs, outputs = body.jaxpr.invars, body.jaxpr.outvars
    # What is carried or constant has one shape inside and outside.
    count = len(outputs) - _differing(equation.outvars, outputs)
    read = _differing(equation.invars, inputs)
    first = len(inputs) - read - count
    stacks = dict(zip(inputs[first + count :], equation.invars[first + count :], strict=True))
    sums = _sums(body.jaxpr, range(first, first + count))
    of_products = [one for one in sums if one.source.primitive is lax.dot_general_p]
    factors = [atom for one in of_products for atom in one.source.invars if atom not in stacks]
    new = {atom: _stacked(atom, length) for atom in factors}
    there = _bytes([*stacks.values(), *equation.outvars[count:]])
    if not of_products or _bytes(new.values()) > there:
        return [equation]
    stacks.update(new)
    # A sum of rows alone is not worth stacking them.
    sums = [one for one in sums if all(atom in stacks for atom in one.source.invars)]
    moved = {one.place for one in sums}
    gone = {id(eq) for one in sums for eq in (one.addition, one.source, *one.chain)}
    kept_in = [i for i in range(len(inputs)) if i - first not in moved or i < first]
    kept_out = [i for i in range(len(outputs)) if i not in moved]
    jaxpr = body.jaxpr.replace(
        eqns=[one for one in body.jaxpr.eqns if id(one) not in gone],
        invars=[inputs[i] for i in kept_in],
        outvars=[*(outputs[i] for i in kept_out), *new],
        debug_info=body.jaxpr.debug_info._replace(arg_names=None, result_paths=None),
    )
    results = [*(equation.outvars[i] for i in kept_out), *new.values()]
    equations = []
    if results:
        left = count - len(moved)
        counted = _counted(params, first, left, read, len(results) - left)
        loop = equation.replace(
            invars=[equation.invars[i] for i in kept_in],
            outvars=results,
            params={**counted, "jaxpr": body.replace(jaxpr=jaxpr)},
        )
        equations.append(loop)
    for one in sums:
        before, after = equation.invars[first + one.place], equation.outvars[one.place]
        equations += _behind(one, [stacks[atom] for atom in one.source.invars], before, after)
    return equations


def _differing(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """How many arrays a loop cuts or stacks: they have another shape inside of it."""
    pairs = zip(outside, inside, strict=True)
    return sum(one.aval.shape != other.aval.shape for one, other in pairs)


def _counted(
    params: Mapping[str, Any], constant: int, carried: int, cut: int, stacked: int
) -> dict[str, Any]:
    """The parameters of a scan with these numbers of arrays, in the form of the JAX that runs."""

    def scan(constant: Sequence[Any], carried: Sequence[Any], cut: Sequence[Any]) -> Any:
        def round_(carried: Any, cut: Any) -> Any:
            # No result is an operand: JAX would take it out of the loop.
            result = sum([*constant, *carried, *cut]) + jnp.ones((), "float32")
            return [result] * len(carried), [result] * stacked

        names = ("length", "reverse", "unroll", "_split_transpose")
        how = {name: params[name] for name in names if name in params}
        return lax.scan(round_, carried, cut, **how)

    number = jax.ShapeDtypeStruct((), "float32")
    rows = jax.ShapeDtypeStruct((params["length"],), "float32")
    traced = jax.make_jaxpr(scan)([number] * constant, [number] * carried, [rows] * cut)
    return next(one.params for one in traced.eqns if one.primitive is lax.scan_p)


def _behind(one: _Sum, stacked: Sequence[Any], before: Any, after: Any) -> list[Any]:
    """Equations for the sum over all rounds, from the stacked operands of its source."""
    value = Var(one.source.outvars[0].aval)
    params = _over_rounds(one.source)
    equations = [one.source.replace(invars=stacked, outvars=[value], params=params)]
    for operation in one.chain:
        operand, value = value, Var(operation.outvars[0].aval)
        equations.append(operation.replace(invars=[operand], outvars=[value]))
    return [*equations, one.addition.replace(invars=[before, value], outvars=[after])]


def _sums(jaxpr: Any, carried: range) -> list[_Sum]:
    """The carried arrays that a round only adds a product of few rows, or a sum, to."""
    uses = products.uses_in(jaxpr)
    made_by = {id(one.outvars[0]): one for one in jaxpr.eqns if len(one.outvars) == 1}
    found = []
    for place, (before, after) in enumerate(
        zip(jaxpr.invars[carried.start : carried.stop], jaxpr.outvars, strict=False)
    ):
        addition = made_by.get(id(after))
        if addition is None or addition.primitive.name not in ("add_any", "add"):
            continue
        added = [atom for atom in addition.invars if atom is not before]
        if len(added) != 1 or not uses[id(before)] == uses[id(after)] == 1:
            continue
        operations = []
        atom = added[0]
        while uses[id(atom)] == 1 and (operation := made_by.get(id(atom))) is not None:
            operations.append(operation)
            if not _is_linear(operation):
                break
            atom = operation.invars[0]
        while operations and not _sums_rows(operations[-1], jaxpr.constvars):
            operations.pop()
        if operations:
            *chain, source = operations
            found.append(_Sum(place, addition, source, chain[::-1]))
    return found


def _is_linear(operation: Any) -> bool:
    """Whether the sum of an operation's results is the operation's result for the sum."""
    types = {one.aval.dtype for one in (*operation.invars, *operation.outvars)}
    return types <= _WIDE_RANGE and operation.primitive.name in _LINEAR


def _sums_rows(source: Any, constants: Sequence[Any]) -> bool:
    if any(isinstance(one, Literal) or one in constants for one in source.invars):
        return False
    if source.primitive is lax.reduce_sum_p:
        return True
    if source.primitive is not lax.dot_general_p or not products.is_plain(source.params):
        return False
    (summed, _), batch = source.params["dimension_numbers"]
    rows = math.prod(source.invars[0].aval.shape[axis] for axis in summed)
    return not any(batch) and rows <= _MOST_ROWS


def _over_rounds(source: Any) -> dict[str, Any]:
    """The parameters of a product or a sum that sums over the rounds, too."""
    params = source.params
    if source.primitive is lax.reduce_sum_p:
        return {**params, "axes": (0, *(axis + 1 for axis in params["axes"]))}
    summed, batch = params["dimension_numbers"]
    both = tuple((0, *(axis + 1 for axis in axes)) for axes in summed)
    return {**params, "dimension_numbers": (both, batch)}


def _stacked(atom: Any, length: int) -> Any:
    shape = (length, *atom.aval.shape)
    return Var(atom.aval.update(shape=shape, sharding=None))


def _bytes(arrays: Iterable[Any]) -> int:
    return sum(one.aval.size * one.aval.dtype.itemsize for one in arrays)


def moving_bits(equation: Any) -> Sequence[Any]:
    """Replace a scan that reads or stacks `bfloat16` by a scan that moves bits, and casts."""
    if equation.primitive is not lax.scan_p or not is_on("loops"):
        return [equation]
    body = equation.params["jaxpr"]
    given, read, moved_in = _as_bits(equation.invars, body.jaxpr.invars)
    results, stored, moved_out = _as_bits(equation.outvars, body.jaxpr.outvars)
    if not moved_in and not moved_out:
        return [equation]
    casts_before = [_bitcast(array, bits, equation) for (array, bits), _ in moved_in]
    casts_at_start = [_bitcast(bits, atom, equation) for _, (atom, bits) in moved_in]
    casts_inside = [_bitcast(atom, bits, equation) for _, (atom, bits) in moved_out]
    casts_behind = [_bitcast(bits, array, equation) for (array, bits), _ in moved_out]
    equations = [*casts_at_start, *body.jaxpr.eqns, *casts_inside]
    inner = body.jaxpr.replace(eqns=equations, invars=read, outvars=stored)
    params = {**equation.params, "jaxpr": body.replace(jaxpr=inner)}
    loop = equation.replace(invars=given, outvars=results, params=params)
    return [*casts_before, loop, *casts_behind]


_Pair = tuple[Any, Any]


def _as_bits(
    outside: Sequence[Any], inside: Sequence[Any]
) -> tuple[list[Any], list[Any], list[tuple[_Pair, _Pair]]]:
    """A loop's arrays outside and inside of it, where those that it cuts or stacks are bits.

    Returns also the pairs of an array and its bits: outside and inside.
    """
    arrays, atoms, moved = list(outside), list(inside), []
    for place, (array, atom) in enumerate(zip(outside, inside, strict=True)):
        # What is carried or constant has one shape inside and outside.
        if array.aval.dtype == _NARROW and array.aval.shape != atom.aval.shape:
            arrays[place], atoms[place] = (
                Var(one.aval.update(dtype=_BITS)) for one in (array, atom)
            )
            moved.append(((array, arrays[place]), (atom, atoms[place])))
    return arrays, atoms, moved


def _bitcast(source: Any, target: Any, like: Any) -> Any:
    params = {"new_dtype": target.aval.dtype}
    return new_jaxpr_eqn(
        [source], [target], lax.bitcast_convert_type_p, params, no_effects, like.source_info
    )


def _is_narrow(operand: Any, *others: Any, **params: Any) -> bool:
    del others, params
    return operand.dtype == _NARROW


def _update_bits(operand: Any, update: Any, *starts: Any, **params: Any) -> Any:
    bits = (lax.bitcast_convert_type(value, _BITS) for value in (operand, update))
    written = lax.dynamic_update_slice_p.bind(*bits, *starts, **params)
    return lax.bitcast_convert_type(written, _NARROW)

"""Loops on CPUs: sums of products move behind the loop; `bfloat16` results are stored as integers.

The gradient of a recurrent layer's weights is a sum of one product of matrices per round. One
product of the rows of all rounds takes less time, and no round reads and writes the sum.

XLA:CPU has `bfloat16` only as a type of arrays in memory. It computes even `dynamic_update_slice`
in 32 bits: each round of a `lax.scan` converts the results of all rounds to `float32` and back. For
integers it writes the slice alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal, Var, new_jaxpr_eqn, no_effects

from replicax._cpu import lowering, products
from replicax._cpu.tuning import is_on

_MOST_ROWS = 1024  # of a round; products of more rows are as fast one by one
_NARROW, _BITS = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.uint16)


def install() -> None:
    """Register the rule for `dynamic_update_slice` of `bfloat16` in our programs on CPUs."""
    lowering.replace(lax.dynamic_update_slice_p, "loops", _is_narrow, _update_bits)


class _Sum(NamedTuple):
    """A carried array to which each round adds a product."""

    place: int  # among the carried arrays
    addition: Any
    product: Any


def sums_behind(equation: Any) -> Sequence[Any]:
    """Replace a scan that carries sums of products by a scan without them, and one product each.

    The factors are stacked, which takes at most as much memory as what the scan stacks already.
    """
    params = equation.params
    # JAX 0.11 counts what a scan carries in another way: its scans stay as they are.
    if equation.primitive is not lax.scan_p or not is_on("loops") or "num_carry" not in params:
        return [equation]
    body = products.turned(params["jaxpr"])
    first, count, length = params["num_consts"], params["num_carry"], params["length"]
    inputs, outputs = body.jaxpr.invars, body.jaxpr.outvars
    stacks = dict(zip(inputs[first + count :], equation.invars[first + count :], strict=True))
    sums = _sums(body.jaxpr, range(first, first + count))
    factors = [atom for one in sums for atom in one.product.invars if atom not in stacks]
    new = {atom: _stacked(atom, length) for atom in factors}
    there = _bytes([*stacks.values(), *equation.outvars[count:]])
    if not sums or _bytes(new.values()) > there:
        return [equation]
    stacks.update(new)
    moved, gone = {one.place for one in sums}, {id(eq) for one in sums for eq in one[1:]}
    kept_in = [i for i in range(len(inputs)) if i - first not in moved or i < first]
    kept_out = [i for i in range(len(outputs)) if i not in moved]
    jaxpr = body.jaxpr.replace(
        eqns=[one for one in body.jaxpr.eqns if id(one) not in gone],
        invars=[inputs[i] for i in kept_in],
        outvars=[*(outputs[i] for i in kept_out), *new],
        debug_info=body.jaxpr.debug_info._replace(arg_names=None, result_paths=None),
    )
    loop = equation.replace(
        invars=[equation.invars[i] for i in kept_in],
        outvars=[*(equation.outvars[i] for i in kept_out), *new.values()],
        params={
            **params,
            "jaxpr": body.replace(jaxpr=jaxpr),
            "num_carry": count - len(moved),
        },
    )
    behind = []
    for place, addition, product in sums:
        whole = Var(product.outvars[0].aval)
        both = [stacks[atom] for atom in product.invars]
        behind += [
            product.replace(invars=both, outvars=[whole], params=_over_rounds(product.params)),
            addition.replace(
                invars=[equation.invars[first + place], whole], outvars=[equation.outvars[place]]
            ),
        ]
    return [loop, *behind]


def _sums(jaxpr: Any, carried: range) -> list[_Sum]:
    """The carried arrays that a round only adds a product of few rows to."""
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
        product = made_by.get(id(added[0])) if len(added) == 1 else None
        alone = uses[id(before)] == uses[id(after)] == uses[id(added[0])] == 1
        if product is not None and alone and _has_few_rows(product, jaxpr.constvars):
            found.append(_Sum(place, addition, product))
    return found


def _has_few_rows(product: Any, constants: Sequence[Any]) -> bool:
    if product.primitive is not lax.dot_general_p or not products.is_plain(product.params):
        return False
    (summed, _), batch = product.params["dimension_numbers"]
    fixed = any(isinstance(one, Literal) or one in constants for one in product.invars)
    rows = math.prod(product.invars[0].aval.shape[axis] for axis in summed)
    return not fixed and not any(batch) and rows <= _MOST_ROWS


def _over_rounds(params: Any) -> Any:
    """The parameters of a product that sums over the rounds, too."""
    summed, batch = params["dimension_numbers"]
    both = tuple((0, *(axis + 1 for axis in axes)) for axes in summed)
    return {**params, "dimension_numbers": (both, batch)}


def _stacked(atom: Any, length: int) -> Any:
    shape = (length, *atom.aval.shape)
    return Var(atom.aval.update(shape=shape, sharding=None))


def _bytes(arrays: Iterable[Any]) -> int:
    return sum(one.aval.size * one.aval.dtype.itemsize for one in arrays)


def storing_bits(equation: Any) -> Sequence[Any]:
    """Replace a scan that stacks `bfloat16` results by a scan that stacks bits, and casts."""
    if equation.primitive is not lax.scan_p or not is_on("loops"):
        return [equation]
    body = equation.params["jaxpr"]
    results, stored = list(equation.outvars), list(body.jaxpr.outvars)
    casts_inside, casts_behind = [], []
    for place, (result, atom) in enumerate(zip(results, stored, strict=True)):
        # What is carried has one shape inside and outside.
        if result.aval.dtype == _NARROW and result.aval.shape != atom.aval.shape:
            results[place] = Var(result.aval.update(dtype=_BITS))
            stored[place] = Var(atom.aval.update(dtype=_BITS))
            casts_inside.append(_bitcast(atom, stored[place], equation))
            casts_behind.append(_bitcast(results[place], result, equation))
    if not casts_behind:
        return [equation]
    inner = body.jaxpr.replace(eqns=[*body.jaxpr.eqns, *casts_inside], outvars=stored)
    params = {**equation.params, "jaxpr": body.replace(jaxpr=inner)}
    return [equation.replace(outvars=results, params=params), *casts_behind]


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

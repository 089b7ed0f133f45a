"""Loops over `bfloat16` on CPUs: the results of the rounds are stored as 16-bit integers.

XLA:CPU has `bfloat16` only as a type of arrays in memory. It computes even `dynamic_update_slice`
in 32 bits: each round of a `lax.scan` converts the results of all rounds to `float32` and back. For
integers it writes the slice alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import Var, new_jaxpr_eqn, no_effects

from replicax._cpu import lowering
from replicax._cpu.tuning import is_on

_NARROW, _BITS = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.uint16)


def install() -> None:
    """Register the rule for `dynamic_update_slice` of `bfloat16` in our programs on CPUs."""
    lowering.replace(lax.dynamic_update_slice_p, "loops", _is_narrow, _update_bits)


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

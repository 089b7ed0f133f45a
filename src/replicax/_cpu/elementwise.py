"""Elementwise operations of `bfloat16` on CPUs: a chain is computed in 32 bits and rounded once.

XLA:CPU computes each of them in 32 bits and rounds its result, which takes as long as half of a
GELU or of an LSTM's gates. Inside of `logistic` alone it rounds four times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal, Var, new_jaxpr_eqn, no_effects

from replicax._cpu.tuning import is_on

_NARROW, _WIDE = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)
_ELEMENTWISE = frozenset(
    (
        *(lax.abs_p, lax.add_p, lax.cbrt_p, lax.clamp_p, lax.cos_p, lax.div_p, lax.erf_p),
        *(lax.erf_inv_p, lax.erfc_p, lax.exp2_p, lax.exp_p, lax.expm1_p, lax.integer_pow_p),
        *(lax.log1p_p, lax.log_p, lax.logistic_p, lax.max_p, lax.min_p, lax.mul_p, lax.neg_p),
        *(lax.pow_p, lax.rsqrt_p, lax.select_n_p, lax.sin_p, lax.sqrt_p, lax.square_p),
        *(lax.sub_p, lax.tan_p, lax.tanh_p),
    )
)


def rounded_once(equations: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    """Compute elementwise operations of `bfloat16` in 32 bits, and round what leaves a chain.

    A value that is used twice, or is a result of the program, is rounded, and all see it rounded:
    it may stay in memory, where it would take twice the room, and sums that correct their rounding
    errors need it. `equations` are those of the program with these `results`.
    """
    if not is_on("elementwise"):
        return equations
    users = {id(atom): one for one in equations for atom in one.invars}
    uses = Counter(id(atom) for one in equations for atom in one.invars)
    uses.update(map(id, results))
    # XLA would keep what is converted back, such as a softmax's exponentials, in memory twice.
    converted = {id(one.invars[0]) for one in equations if _converts(one)}

    def goes(equation: Any) -> bool:
        if not _is_narrow(equation):
            return False
        result = id(equation.outvars[0])
        return uses[result] == 1 or result not in converted

    wide: dict[int, Any] = {}  # values of chains before rounding, by the `id` of the rounded one
    found: list[Any] = []
    for equation in equations:
        if not goes(equation):
            found.append(equation)
            continue
        operands = [_widened(atom, wide, found) for atom in equation.invars]
        (result,) = equation.outvars
        value = Var(result.aval.update(dtype=_WIDE))
        found.append(equation.replace(invars=operands, outvars=[value]))
        user = users.get(id(result))
        if uses[id(result)] == 1 and user is not None and goes(user):
            wide[id(result)] = value
        else:
            found.append(_converted(value, result))
    return found


def _converts(equation: Any) -> bool:
    is_conversion = equation.primitive is lax.convert_element_type_p
    return is_conversion and equation.params["new_dtype"] == _WIDE


def _is_narrow(equation: Any) -> bool:
    return equation.primitive in _ELEMENTWISE and equation.outvars[0].aval.dtype == _NARROW


def _widened(atom: Any, wide: Mapping[int, Any], equations: list[Any]) -> Any:
    """An operand in 32 bits; converted by one more equation, unless it is in a chain."""
    if atom.aval.dtype != _NARROW:  # what `select_n` chooses by, the exponent of `pow`
        return atom
    if id(atom) in wide:
        return wide[id(atom)]
    aval = atom.aval.update(dtype=_WIDE)
    if isinstance(atom, Literal):
        return Literal(np.asarray(atom.val, _NARROW).astype(_WIDE), aval)
    equations.append(_converted(atom, value := Var(aval)))
    return value


def _converted(source: Any, target: Any) -> Any:
    dtype = target.aval.dtype
    params = {"new_dtype": dtype, "weak_type": target.aval.weak_type, "sharding": None}
    return new_jaxpr_eqn([source], [target], lax.convert_element_type_p, params, no_effects)

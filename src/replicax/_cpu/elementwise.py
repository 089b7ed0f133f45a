"""Elementwise operations of `bfloat16` on CPUs: a chain is computed in 32 bits and rounded once.

XLA:CPU computes each of them in 32 bits and rounds its result, which takes as long as half of a
GELU or of an LSTM's gates. Inside of `logistic` alone it rounds four times. XLA's compilers for
accelerators leave such roundings out, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal, Var, new_jaxpr_eqn, no_effects

from replicax._cpu.lowering import narrows, widens
from replicax._cpu.tuning import is_on

_NARROW, _WIDE = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)
_ELEMENTWISE = frozenset(
    (
        *(lax.abs_p, lax.add_p, lax.cbrt_p, lax.clamp_p, lax.cos_p, lax.div_p, lax.erf_p),
        *(lax.erf_inv_p, lax.erfc_p, lax.exp2_p, lax.exp_p, lax.expm1_p, lax.integer_pow_p),
        *(lax.log1p_p, lax.log_p, lax.logistic_p, lax.max_p, lax.min_p, lax.mul_p, lax.neg_p),
        *(lax.pow_p, lax.rsqrt_p, lax.select_n_p, lax.sin_p, lax.slice_p, lax.split_p),
        *(lax.sqrt_p, lax.square_p, lax.sub_p, lax.tan_p, lax.tanh_p),
    )
)
_CALLS = ("jit", "pjit", "custom_jvp_call")
_MOST_USES = 2  # of a value that stays in 32 bits; one that is used more often stays in memory


def rounded_once(equations: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    """Compute elementwise operations of `bfloat16` in 32 bits, and round what leaves a chain.

    A value that is used twice, or is a result of the program, is rounded, and all see it rounded:
    it may stay in memory, where it would take twice the room, and sums that correct their rounding
    errors need it. `equations` are those of the program with these `results`.

    A chain goes on through functions that are elementwise, such as activations. It also goes on
    through a conversion of the program's own, as at the end of a batch normalization, if nothing
    else uses the value in 32 bits and at most two operations use the converted one.
    """
    if not is_on("elementwise"):
        return equations
    equations = [part for one in equations for part in _operations(one)]
    users: dict[int, list[Any]] = defaultdict(list)
    for one in equations:
        for atom in one.invars:
            users[id(atom)].append(one)
    kept = set(map(id, results))

    def goes(equation: Any) -> bool:
        """Whether an operation is computed in 32 bits."""
        # XLA would keep what is converted back, such as a softmax's exponentials, in memory twice.
        return _is_narrow(equation) and not any(
            len(users[id(one)]) > 1 and any(map(widens, users[id(one)])) for one in equation.outvars
        )

    def stays(result: Any, most: int) -> bool:
        """Whether only what is computed in 32 bits uses a value, and so many times at most."""
        uses = users[id(result)]
        is_rare = 0 < len(uses) <= most and id(result) not in kept
        return is_rare and all(goes(one) or widens(one) for one in uses)

    def passes(rounding: Any) -> bool:
        """Whether a program's own rounding is left out: nothing sees the value before it."""
        (source,), (result,) = rounding.invars, rounding.outvars
        if isinstance(source, Literal) or len(users[id(source)]) > 1 or id(source) in kept:
            return False
        return stays(result, _MOST_USES)

    wide: dict[int, Any] = {}  # values of chains before rounding, by the `id` of the rounded one
    found: list[Any] = []
    for equation in equations:
        if goes(equation):
            operands = [_widened(atom, wide, found) for atom in equation.invars]
            values = [Var(one.aval.update(dtype=_WIDE)) for one in equation.outvars]
            found.append(equation.replace(invars=operands, outvars=values))
            for value, one in zip(values, equation.outvars, strict=True):
                if stays(one, 1):
                    wide[id(one)] = value
                else:
                    found.append(_converted(value, one))
        elif widens(equation) and id(equation.invars[0]) in wide:
            found.append(_converted(wide[id(equation.invars[0])], equation.outvars[0]))
        elif narrows(equation) and passes(equation):
            wide[id(equation.outvars[0])] = equation.invars[0]
        else:
            found.append(equation)
    return found


def _operations(equation: Any) -> Sequence[Any]:
    """The operations of a call of an elementwise function of `bfloat16`; of others, the call."""
    params = equation.params
    body = params.get("jaxpr", params.get("call_jaxpr"))
    if equation.primitive.name not in _CALLS or body is None or body.consts:
        return [equation]
    placed = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    if any(isinstance(one, jax.sharding.Sharding) for one in placed):
        return [equation]
    inner = getattr(body, "jaxpr", body)  # JAX 0.10 has two classes
    made = {id(one) for equation in inner.eqns for one in equation.outvars}
    is_elementwise = all(
        one.primitive in _ELEMENTWISE or one.primitive is lax.convert_element_type_p
        for one in inner.eqns
    )
    has_own_results = len(made.intersection(map(id, inner.outvars))) == len(inner.outvars)
    if not is_elementwise or not has_own_results or not any(map(narrows, inner.eqns)):
        return [equation]
    names = dict(zip(inner.invars, equation.invars, strict=True))
    # A result that the caller drops (a subclass of `Var`) may be used inside.
    ends = zip(inner.outvars, equation.outvars, strict=True)
    names.update((inside, outside) for inside, outside in ends if type(outside) is Var)
    return [
        one.replace(
            invars=[atom if isinstance(atom, Literal) else names[atom] for atom in one.invars],
            outvars=[names.setdefault(atom, Var(atom.aval)) for atom in one.outvars],
        )
        for one in inner.eqns
    ]


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

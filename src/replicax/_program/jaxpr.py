"""Walks over jaxprs: the jaxpr that an equation calls, binding an equation again, environments.

An analysis may look into `jax.checkpoint`. A pass that rewrites may not: an inlined checkpoint
would keep the values that it is there to rematerialize.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import (
    ClosedJaxpr,
    Literal,
    Var,
    jaxprs_in_params,
    new_jaxpr_eqn,
    no_effects,
)
from jax.lax import ScatterDimensionNumbers

from replicax._core.host_calls import CALLBACK_PRIMITIVES
from replicax._cpu.lowering import varying_axes

# One inner program, called once with the same arguments.
_CALLS = ("jit", "closed_call", "custom_jvp_call", "custom_vjp_call")
_REMAT = ("remat2", "checkpoint")


def inner_jaxpr(equation: Any, *, remat: bool = False) -> Any:
    """The closed jaxpr that an equation calls once with its operands; None for other equations.

    With `remat`, a `jax.checkpoint` counts as a call.
    """
    if equation.primitive.name not in (_CALLS + _REMAT if remat else _CALLS):
        return None
    params = equation.params
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    if inner is None or len(getattr(inner, "jaxpr", inner).invars) != len(equation.invars):
        return None
    return inner if hasattr(inner, "consts") else ClosedJaxpr(inner, ())


def flatten(
    closed: Any,
    inputs: Sequence[Any],
    constant: Callable[[Any], Any],
    note: Callable[[Any, list[Any]], Sequence[Any]],
    *,
    remat: bool = False,
) -> list[Any]:
    """Interpret a closed jaxpr, calls inlined, on abstract values; returns the results' values.

    `inputs` are the values of its arguments, `constant` makes the value of a constant or literal,
    and `note` those of an equation's results from its operands'. For `remat` see `inner_jaxpr`.
    """
    known = dict(zip(closed.jaxpr.constvars, map(constant, closed.consts), strict=True))
    known.update(zip(closed.jaxpr.invars, inputs, strict=True))

    def value(atom: Any) -> Any:
        return constant(atom.val) if isinstance(atom, Literal) else known[atom]

    for equation in closed.jaxpr.eqns:
        operands = list(map(value, equation.invars))
        inner = inner_jaxpr(equation, remat=remat)
        if inner is None:
            results = note(equation, operands)
        else:
            results = flatten(inner, operands, constant, note, remat=remat)
        known.update(zip(equation.outvars, results, strict=True))
    return list(map(value, closed.jaxpr.outvars))


def equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr, each followed by those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def indexed_by_int32(equations: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The equations of a program, with scatters into many arrays at once indexed by `int32`.

    XLA ends the process if it divides such a scatter unevenly and its indices are of another type
    (JAX 0.10.2). The gradient of `jnp.sort` has `uint32`. Inside of a `shard_map` XLA divides
    nothing.
    """
    del results
    return [new for one in equations for new in _indexed_by_int32(one)]


def _indexed_by_int32(equation: Any) -> Sequence[Any]:
    dims = equation.params.get("dimension_numbers")
    if not isinstance(dims, ScatterDimensionNumbers) or not dims.operand_batching_dims:
        return [equation]
    operand, indices, updates = equation.invars
    aval, new = indices.aval, np.dtype(np.int32)
    if aval.dtype == new or varying_axes(aval):
        return [equation]
    # An index that is too large for the array is too large after it is clamped, too.
    own, wanted = np.iinfo(aval.dtype), np.iinfo(new)
    low, high = (
        Literal(aval.dtype.type(end), aval.update(shape=(), sharding=None))
        for end in (max(own.min, wanted.min), min(own.max, wanted.max))
    )
    clamped, narrow = Var(aval), Var(aval.update(dtype=new))
    how = {"new_dtype": new, "weak_type": False, "sharding": None}
    return [
        new_jaxpr_eqn([low, indices, high], [clamped], lax.clamp_p, {}, no_effects),
        new_jaxpr_eqn([clamped], [narrow], lax.convert_element_type_p, how, no_effects),
        equation.replace(invars=[operand, narrow, updates]),
    ]


def has_host_callbacks(closed: Any) -> bool:
    """Whether a program calls Python, which may raise while it runs."""
    names = {*CALLBACK_PRIMITIVES, "debug_print"}
    return any(equation.primitive.name in names for equation in equations(closed.jaxpr))


def bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Bind an equation again, under the settings and the name stack that it was traced under."""
    params = equation.primitive.get_bind_params(equation.params)
    here = jax.sharding.get_abstract_mesh()  # not where it was traced
    with equation.ctx.manager, jax.sharding.use_abstract_mesh(here), name_scope_of(equation):
        results = equation.primitive.bind(*operands, **params)
    return list(results) if equation.primitive.multiple_results else [results]


def shard_map(fn: Callable[..., Any], **how: Any) -> Any:
    """`jax.shard_map` of a function that replaces arguments without elements.

    XLA ends the process if a map on several CPU devices reads such an array (JAX 0.11.2).
    """
    return jax.shard_map(lambda *args: fn(*jax.tree.map(fresh_if_empty, args)), **how)


def fresh_if_empty(array: Any) -> Any:
    """The array; without elements, an equal one that does not depend on it."""
    return array if np.size(array) else jnp.zeros_like(array)


def name_scope_of(equation: Any) -> contextlib.AbstractContextManager[Any]:
    """The name scope that an equation was traced in, for its name in the compiled program."""
    names = str(equation.source_info.name_stack)
    return jax.named_scope(names) if names else contextlib.nullcontext()


@final
class Environment(dict[Any, Any]):
    """The values of a jaxpr's variables during its evaluation."""

    def __init__(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> None:
        super().__init__(zip(jaxpr.constvars, consts, strict=True))
        self.update(zip(jaxpr.invars, inputs, strict=True))

    def read(self, atoms: Sequence[Any]) -> list[Any]:
        return [atom.val if isinstance(atom, Literal) else self[atom] for atom in atoms]

    def write(self, equation: Any, results: Sequence[Any]) -> None:
        self.update(zip(equation.outvars, results, strict=True))

"""Operations of a program exchanged for others, wherever in the program they are."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

Exchange = Callable[[Sequence[Any]], Sequence[Any]]


def rewritten(fn: Callable[..., Any], exchange: Exchange) -> Callable[..., Any]:
    """A function from nests of arrays to a nest of arrays, with other operations.

    `exchange` gets the equations of a program, and gives the same list or another. The programs
    in the parameters of an equation are rewritten before.
    """

    @functools.wraps(fn)
    def with_others(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        results = jaxpr_as_fun(_rewritten(closed, exchange, {}))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return with_others


def _rewritten(value: Any, exchange: Exchange, known: dict[int, Any]) -> Any:
    """A program, or the programs in a parameter of an operation.

    JAX lowers by object identity: an unchanged program stays the same object, and a program that
    occurs twice is replaced by one object.
    """
    if type(value) is tuple:
        return tuple(_rewritten(part, exchange, known) for part in value)
    if not isinstance(value, ClosedJaxpr | Jaxpr):
        return value
    if id(value) not in known:
        known[id(value)] = _of_program(value, exchange, known)
    return known[id(value)]


def _of_program(program: Any, exchange: Exchange, known: dict[int, Any]) -> Any:
    inner = getattr(program, "jaxpr", program)
    if inner is not program:  # JAX 0.10 has two classes: one with constants around one without
        jaxpr = _rewritten(inner, exchange, known)
        return program if jaxpr is inner else program.replace(jaxpr=jaxpr)
    equations = exchange([_of_equation(one, exchange, known) for one in program.eqns])
    is_same = len(equations) == len(program.eqns) and all(
        map(operator.is_, equations, program.eqns)
    )
    return program if is_same else program.replace(eqns=list(equations))


def _of_equation(equation: Any, exchange: Exchange, known: dict[int, Any]) -> Any:
    changed = {
        name: new
        for name, value in equation.params.items()
        if (new := _rewritten(value, exchange, known)) is not value
    }
    return equation.replace(params={**equation.params, **changed}) if changed else equation

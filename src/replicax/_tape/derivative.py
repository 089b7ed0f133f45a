"""Derivatives of single operations, traced once for each kind of operation and of operands.

`jax.vjp` takes a fraction of a millisecond to set up, and a model has thousands of operations of a
few kinds. Here what it does is kept as two jaxprs: there, and back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, final

import jax
import jax.core
import jax.extend

from replicax._program.jaxpr import Values, is_jit

_core = jax.extend.core
KINDS = 2048
"""Of how many kinds of operations derivatives are kept."""


def derivative_of(
    primitive: Any, params: dict[str, Any], operands: Sequence[Any], places: Sequence[int]
) -> Derivative | None:
    """The derivative of an operation by some of its operands; None if it should not be kept."""
    if any(True for _ in _core.jaxprs_in_params(params)):
        inner = params.get("jaxpr")
        # What `jnp` compiles by itself; a loop or a function of the user's is new each time.
        if not is_jit(primitive) or getattr(inner, "consts", True):
            return None
    kinds = tuple(map(jax.typeof, operands))
    if not all(isinstance(kind, jax.core.ShapedArray) for kind in kinds):
        return None
    mesh = jax.sharding.get_abstract_mesh()
    try:
        found = _kept(primitive, tuple(sorted(params.items())), kinds, tuple(places), mesh)
    except (
        TypeError
    ):  # something is not hashable; if it is the operation's own error it comes again
        return None
    return found if found.is_plain else None


@functools.lru_cache(maxsize=KINDS)
def _kept(
    primitive: Any, params: Any, kinds: tuple[Any, ...], places: tuple[int, ...], mesh: Hashable
) -> Derivative:
    del mesh  # what is traced depends on it

    def call(operands: Sequence[Any]) -> list[Any]:
        results = primitive.bind(*operands, **dict(params))
        return list(results) if primitive.multiple_results else [results]

    return Derivative(call, kinds, places)


@final
class Derivative:
    """An operation and its derivative, as jaxprs.

    `call` is from a list of operands to a list of results; `places` are the operands to
    differentiate by.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Any]], list[Any]],
        kinds: Sequence[Any],
        places: Sequence[int],
    ) -> None:
        def both(*operands: Any) -> Any:
            function = differentiable(call, operands, places, self.chosen)
            results, back, others = jax.vjp(function, *[operands[p] for p in places], has_aux=True)
            return results, others, back

        self.chosen: list[bool] = []
        self._there, shapes = jax.make_jaxpr(both, return_shape=True)(*kinds)
        results, others, back = shapes
        self._counts = len(results), len(others)
        residuals, tree = jax.tree.flatten(back)
        self._back = jax.make_jaxpr(
            lambda residuals, gradients: list(tree.unflatten(residuals)(gradients))
        )(residuals, results)
        equations = [*self._there.jaxpr.eqns, *self._back.jaxpr.eqns]
        # Whether it consists of operations that can be carried out as they stand.
        self.is_plain = all(type(equation.primitive) is _core.Primitive for equation in equations)

    def __call__(
        self, operands: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable[[Sequence[Any]], Sequence[Any]]]:
        """Carry the operation out: differentiable results, the others, and the way back."""
        found = _carried_out(self._there, operands)
        first, second = self._counts
        residuals = found[first + second :]

        def backward(gradients: Sequence[Any]) -> Sequence[Any]:
            return _carried_out(self._back, [*residuals, *gradients])

        return found[:first], found[first : first + second], backward


def differentiable(
    call: Callable[[Sequence[Any]], list[Any]],
    operands: Sequence[Any],
    places: Sequence[int],
    chosen: list[bool],
) -> Callable[..., tuple[list[Any], list[Any]]]:
    """An operation as a function of some operands, to its differentiable results and the others.

    `places` are these operands. `chosen` is told of each result whether it is differentiable.
    """

    def function(*values: Any) -> tuple[list[Any], list[Any]]:
        full = list(operands)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        results = call(full)
        chosen[:] = map(is_differentiable, results)
        pairs = list(zip(results, chosen, strict=True))
        return [r for r, yes in pairs if yes], [r for r, yes in pairs if not yes]

    return function


def is_differentiable(value: Any) -> bool:
    """Whether a value is made of real or complex numbers."""
    return jax.numpy.issubdtype(getattr(value, "dtype", type(value)), jax.numpy.inexact)


def _carried_out(closed: Any, inputs: Sequence[Any]) -> list[Any]:
    """Carry out a jaxpr, as if its operations stood here: `eval_jaxpr` keeps their old context."""
    jaxpr = closed.jaxpr
    values = Values(jaxpr, closed.consts, inputs)
    for equation in jaxpr.eqns:
        found = equation.primitive.bind(*values.read(equation.invars), **equation.params)
        several = equation.primitive.multiple_results
        values.write(equation, found if several else [found])
    return values.read(jaxpr.outvars)

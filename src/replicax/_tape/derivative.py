"""Derivatives of single operations, traced once for each primitive and operand types.

`jax.vjp` takes a fraction of a millisecond, and a model has thousands of operations of a few
kinds. So the forward and the backward pass of each kind are cached as jaxprs.
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
MAX_DERIVATIVES = 2048  # in the cache


def derivative_of(
    primitive: Any, params: dict[str, Any], operands: Sequence[Any], places: Sequence[int]
) -> Derivative | None:
    """The cached derivative of an operation by the operands at `places`; None if not cacheable."""
    if any(True for _ in _core.jaxprs_in_params(params)):
        inner = params.get("jaxpr")
        # Functions that `jnp` compiles recur; loops and users' functions are new each time.
        if not is_jit(primitive) or getattr(inner, "consts", True):
            return None
    kinds = tuple(map(jax.typeof, operands))
    if not all(isinstance(kind, jax.core.ShapedArray) for kind in kinds):
        return None
    mesh = jax.sharding.get_abstract_mesh()
    try:
        found = _kept(primitive, tuple(sorted(params.items())), kinds, tuple(places), mesh)
    except TypeError:  # a parameter is not hashable, or the operation fails: then it fails again
        return None
    return found if found.is_plain else None


@functools.lru_cache(maxsize=MAX_DERIVATIVES)
def _kept(
    primitive: Any, params: Any, kinds: tuple[Any, ...], places: tuple[int, ...], mesh: Hashable
) -> Derivative:
    del mesh  # a part of the key, because the trace depends on it

    def call(operands: Sequence[Any]) -> list[Any]:
        results = primitive.bind(*operands, **dict(params))
        return list(results) if primitive.multiple_results else [results]

    return Derivative(call, kinds, places)


@final
class Derivative:
    """The forward and the backward pass of an operation, as jaxprs.

    `call` maps a list of operands to a list of results. The derivative is by the operands at
    `places`.
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
        self._forward, shapes = jax.make_jaxpr(both, return_shape=True)(*kinds)
        results, others, back = shapes
        self._counts = len(results), len(others)
        residuals, tree = jax.tree.flatten(back)
        self._backward = jax.make_jaxpr(
            lambda residuals, gradients: list(tree.unflatten(residuals)(gradients))
        )(residuals, results)
        equations = [*self._forward.jaxpr.eqns, *self._backward.jaxpr.eqns]
        # Whether each equation can be bound again; calls and custom derivatives cannot.
        self.is_plain = all(type(equation.primitive) is _core.Primitive for equation in equations)

    def __call__(
        self, operands: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable[[Sequence[Any]], Sequence[Any]]]:
        """Run the operation: the differentiable results, the others, and the backward function."""
        found = _evaluate(self._forward, operands)
        first, second = self._counts
        residuals = found[first + second :]

        def backward(gradients: Sequence[Any]) -> Sequence[Any]:
            return _evaluate(self._backward, [*residuals, *gradients])

        return found[:first], found[first : first + second], backward


def differentiable(
    call: Callable[[Sequence[Any]], list[Any]],
    operands: Sequence[Any],
    places: Sequence[int],
    chosen: list[bool],
) -> Callable[..., tuple[list[Any], list[Any]]]:
    """A function of the operands at `places`, to the differentiable results and the other ones.

    A call fills `chosen`: for each result, whether it is differentiable.
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
    """Whether a value consists of real or complex numbers."""
    return jax.numpy.issubdtype(getattr(value, "dtype", type(value)), jax.numpy.inexact)


def _evaluate(closed: Any, inputs: Sequence[Any]) -> list[Any]:
    """Run a jaxpr in the current context; `eval_jaxpr` would restore the context of its trace."""
    jaxpr = closed.jaxpr
    values = Values(jaxpr, closed.consts, inputs)
    for equation in jaxpr.eqns:
        found = equation.primitive.bind(*values.read(equation.invars), **equation.params)
        several = equation.primitive.multiple_results
        values.write(equation, found if several else [found])
    return values.read(jaxpr.outvars)

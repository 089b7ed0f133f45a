"""What XLA:CPU gets for an operation of JAX in our programs: a rule of ours, or JAX's own.

`with_rules` puts operations of ours in the place of JAX's: the same in all, but that on CPUs a rule
chooses how each is computed. What others compile with JAX is left alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Generator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import mlir

from replicax._core.cpu_tuning import is_on

# For operations of JAX: the part of the tuning that replaces each, and what it is replaced by.
_rules: dict[Primitive, tuple[str, Primitive]] = {}
_exported: ContextVar[frozenset[str]] = ContextVar("replicax_exported", default=frozenset())


def has_known_sizes(*arrays: Any) -> bool:
    """Whether all lengths are numbers, and none is zero.

    In a program that is exported for any number of rows, a length may be a name. To compare it
    with a number is an error.
    """
    shapes = (getattr(array, "shape", ()) for array in arrays)
    return all(isinstance(size, int) and size for shape in shapes for size in shape)


def may_replace(ctx: Any, kernels: Collection[str] = ()) -> bool:
    """Whether an operation may be computed by other means than JAX's: asked for each of them.

    Args:
        ctx: JAX's context of the operation.
        kernels: Those that compute it. An exported program is without them, since other processes
            lack them, except within `exporting`.
    """
    exported = ctx.module_context.lowering_parameters.for_export
    stays = not exported or _exported.get().issuperset(kernels)
    return stays and has_known_sizes(*ctx.avals_in, *ctx.avals_out)


def in_32_bits(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The same computation with operands of `bfloat16` widened, and its result narrowed again.

    XLA:CPU computes like this too. The result has the type of the first operand.
    """

    @functools.wraps(compute)
    def computed(first: Any, *others: Any, **how: Any) -> Any:
        return compute(*map(_widened, (first, *others)), **how).astype(first.dtype)

    return computed


def _widened(array: Any) -> Any:
    is_narrow = getattr(array, "dtype", None) == jnp.bfloat16
    return array.astype(jnp.float32) if is_narrow else array


@contextlib.contextmanager
def exporting(*kernels: str) -> Generator[None]:
    """A `with` block for exports to processes that have these kernels."""
    token = _exported.set(frozenset(kernels))
    try:
        yield
    finally:
        _exported.reset(token)


def replace(
    primitive: Any, part: str, covers: Callable[..., bool], compute: Callable[..., Any]
) -> None:
    """Let an operation be computed on CPUs by other operations, while a part of the tuning is on.

    Args:
        primitive: The operation, which has one result.
        part: The part of the tuning that this belongs to.
        covers: Called with the operands' shapes and types, and with the operation's parameters
            by name: whether `compute` is to be used. Else it stays JAX's own.
        compute: Computes the result from the operands and the parameters, traced by JAX.
    """
    own = mlir.lower_fun(compute, multiple_results=False)

    def choose(ctx: Any, **params: Any) -> Callable[..., Any] | None:
        return own if covers(*ctx.avals_in, **params) else None

    choose_rule(primitive, part, choose)


def choose_rule(
    primitive: Any,
    part: str,
    choose: Callable[..., Any],
    *,
    kernels: Collection[str] = (),
) -> None:
    """Let a function choose an operation's rule on CPUs, while a part of the tuning is on.

    Args:
        primitive: The operation, which has one result.
        part: The part of the tuning that this belongs to.
        choose: Called with JAX's context of the operation and its parameters, where
            `may_replace` holds: gives the rule, or None for JAX's own.
        kernels: The names of those that the rule calls.
    """
    if primitive in _rules:
        return
    own = Primitive(own_name(primitive))
    own.def_effectful_abstract_eval(primitive.abstract_eval)
    own.def_impl(primitive.bind)
    stock = mlir.lower_fun(primitive.bind, multiple_results=False)

    def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
        chosen = choose(ctx, **params) if may_replace(ctx, kernels) else None
        return (chosen or stock)(ctx, *operands, **params)

    mlir.register_lowering(own, stock)
    mlir.register_lowering(own, rule, platform="cpu")
    _rules[primitive] = part, own


def own_name(primitive: Any) -> str:
    """What an operation of JAX is called in a program of ours, where a rule may replace it."""
    return f"replicax_{primitive.name}"


def with_rules(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose operations are computed by our rules, where it is compiled for CPUs.

    Args:
        fn: From nests of arrays to a nest of arrays, without a gradient taken through it later.
    """

    @functools.wraps(fn)
    def ruled(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        results = jaxpr_as_fun(_ruled(closed, {}))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return ruled


def _ruled(value: Any, known: dict[int, Any]) -> Any:
    """A program, or a parameter of an operation with the programs in it.

    What has nothing to replace stays the same object, and what is there twice stays the same twice:
    JAX lowers by identity.
    """
    if type(value) is tuple:
        return tuple(_ruled(part, known) for part in value)
    if not isinstance(value, ClosedJaxpr | Jaxpr):
        return value
    if id(value) not in known:
        known[id(value)] = _program_ruled(value, known)
    return known[id(value)]


def _program_ruled(program: Any, known: dict[int, Any]) -> Any:
    if isinstance(program, ClosedJaxpr):
        jaxpr = _ruled(program.jaxpr, known)
        return program if jaxpr is program.jaxpr else program.replace(jaxpr=jaxpr)
    equations = [_equation_ruled(equation, known) for equation in program.eqns]
    same = all(new is old for new, old in zip(equations, program.eqns, strict=True))
    return program if same else program.replace(eqns=equations)


def _equation_ruled(equation: Any, known: dict[int, Any]) -> Any:
    part, own = _rules.get(equation.primitive, ("", None))
    if own is not None and is_on(part):
        return equation.replace(primitive=own)
    changed = {
        name: new
        for name, value in equation.params.items()
        if (new := _ruled(value, known)) is not value
    }
    return equation.replace(params={**equation.params, **changed}) if changed else equation

"""How operations are computed on CPUs in our programs: by a rule of ours, or as JAX does it.

programs.py puts operations of ours in the place of JAX's: the same in all, but that on CPUs a rule
chooses how each is computed. What others compile with JAX is left alone. `operation` makes new
ones from a formula, which a kernel in C may compute.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Generator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

# For operations of JAX: the part of the tuning that replaces each, and what it is replaced by.
rules: dict[Primitive, tuple[str, Primitive]] = {}
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


def is_on_one_device(module: Any, *, replicated: bool = False) -> bool:
    """Whether JAX divides no array of an operation that it compiles.

    `module` is what JAX knows of the program while it lowers an operation of it. `replicated`: each
    device has the whole of each array, if JAX divides others.
    """
    context = module.axis_context
    if isinstance(context, mlir.SPMDAxisContext):
        return is_whole(context.mesh, context.manual_axes)
    return replicated or getattr(context, "num_devices", None) == 1


def is_whole(mesh: Any, manual_axes: Any = None) -> bool:
    """Whether no axis is left over which JAX divides arrays, inside of `shard_map`."""
    manual = mesh.manual_axes if manual_axes is None else manual_axes
    left = set(mesh.axis_names) - set(manual)
    return bool(manual) and all(mesh.shape[axis] == 1 for axis in left)


def varying_alike(*arrays: Any) -> Sequence[Any]:
    """The same, known to differ between devices if one of them does: for JAX inside `shard_map`."""
    axes = [getattr(jax.typeof(array), "vma", frozenset()) for array in arrays]
    over = frozenset().union(*axes)
    return [
        lax.pcast(array, tuple(over - own), to="varying") if over - own else array
        for array, own in zip(arrays, axes, strict=True)
    ]


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


def operation(
    name: str,
    formula: Callable[..., Any],
    types: Callable[..., Any],
    choose: Callable[..., Callable[..., Any] | None] | None = None,
    *,
    kernels: Collection[str] = (),
    several: bool = False,
) -> Primitive:
    """An operation with all transformations of JAX: those of its formula, until it gets its own.

    Args:
        name: What the operation is called in a program.
        formula: Computes it, of arrays; what it takes by name is part of the program.
        types: The types of what it gives, of those of its arrays.
        choose: On CPUs, given JAX's context of it, where `may_replace` holds: the rule by which a
            kernel computes it, or None.
        kernels: The names of those that the rule calls.
        several: Whether it gives a list.
    """
    made = Primitive(f"replicax_{name}")
    made.multiple_results = several
    made.def_abstract_eval(types)

    @functools.partial(jax.jit, static_argnames="how")
    def compiled(*arrays: Any, how: tuple[tuple[str, Any], ...]) -> Any:
        return made.bind(*arrays, **dict(how))

    def by_itself(*arrays: Any, **how: Any) -> Any:
        # Without `jit` a call of `compiled` would come back here.
        if getattr(jax.config, "jax_disable_jit", False):
            return formula(*arrays, **how)
        return compiled(*arrays, how=tuple(how.items()))

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **how: Any) -> Any:
        whole = tuple(map(ad.instantiate_zeros, tangents))
        return jax.jvp(functools.partial(formula, **how), tuple(primals), whole)

    def mapped(arrays: Sequence[Any], axes: Sequence[Any], **how: Any) -> Any:
        results = jax.vmap(functools.partial(formula, **how), axes)(*arrays)
        return results, [0] * len(results) if several else 0

    made.def_impl(by_itself)
    ad.primitive_jvps[made] = jvp
    batching.primitive_batchers[made] = mapped
    in_operations = mlir.lower_fun(formula, multiple_results=several)
    mlir.register_lowering(made, in_operations)
    if choose is not None:

        def rule(ctx: Any, *operands: Any, **how: Any) -> Any:
            own = choose(ctx, **how) if may_replace(ctx, kernels) else None
            return (own or in_operations)(ctx, *operands, **how)

        mlir.register_lowering(made, rule, platform="cpu")
    return made


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
    own = Primitive(own_name(primitive))
    own.def_effectful_abstract_eval(primitive.abstract_eval)
    own.def_impl(primitive.bind)
    stock = mlir.lower_fun(primitive.bind, multiple_results=False)

    def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
        chosen = choose(ctx, **params) if may_replace(ctx, kernels) else None
        return (chosen or stock)(ctx, *operands, **params)

    mlir.register_lowering(own, stock)
    mlir.register_lowering(own, rule, platform="cpu")
    rules[primitive] = part, own


def own_name(primitive: Any) -> str:
    """What an operation of JAX is called in a program of ours, where a rule may replace it."""
    return f"replicax_{primitive.name}"

"""Lowering rules for operations on CPUs, in Replicax' programs only.

programs.py replaces primitives of JAX by equal primitives of ours, for which a rule chooses the
lowering on CPUs. Programs that others compile with JAX are unchanged. `operation` makes a new
primitive from a formula, with an optional kernel in C.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from replicax._core.tracing import around

# For each replaced primitive of JAX: the part of the tuning, and our primitive.
rules: dict[Primitive, tuple[str, Primitive]] = {}


def has_known_sizes(*arrays: Any) -> bool:
    """Whether all axis sizes are numbers other than zero.

    In a program that is exported for any number of rows, a size may be a symbol, and comparing a
    symbol with a number is an error.
    """
    shapes = (getattr(array, "shape", ()) for array in arrays)
    return all(isinstance(size, int) and size for shape in shapes for size in shape)


def may_replace(ctx: Any, kernels: Collection[str] = ()) -> bool:
    """Whether a rule may replace JAX's lowering of an operation.

    An exported program may not use `kernels`, which other processes may lack, except within
    `on_this_machine`.
    """
    exported = ctx.module_context.lowering_parameters.for_export
    stays = not exported or around().kernels.issuperset(kernels)
    return stays and has_known_sizes(*ctx.avals_in, *ctx.avals_out)


def is_on_one_device(module: Any, *, replicated: bool = False) -> bool:
    """Whether each device has the whole arrays of an operation.

    `module` is JAX's lowering context of the program. `replicated` says so for the arrays of this
    operation in a program whose other arrays JAX may divide.
    """
    context = module.axis_context
    if isinstance(context, mlir.SPMDAxisContext):
        return is_whole(context.mesh, context.manual_axes)
    return replicated or getattr(context, "num_devices", None) == 1


def is_whole(mesh: Any, manual_axes: Any = None) -> bool:
    """Whether code is inside a `shard_map` over all axes of the mesh that are larger than one."""
    manual = mesh.manual_axes if manual_axes is None else manual_axes
    left = set(mesh.axis_names) - set(manual)
    return bool(manual) and all(mesh.shape[axis] == 1 for axis in left)


def varying_axes(aval: Any) -> frozenset[str]:
    """The mesh axes over which an array varies inside of a `shard_map`."""
    kind = getattr(aval, "manual_axis_type", None)
    return getattr(aval, "vma", frozenset()) if kind is None else kind.varying  # before JAX 0.10.2


def varying_alike(*arrays: Any) -> Sequence[Any]:
    """Mark all arrays as varying over the axes over which one of them varies (`shard_map`)."""
    axes = [varying_axes(jax.typeof(array)) for array in arrays]
    over = frozenset().union(*axes)
    return [
        lax.pcast(array, tuple(over - own), to="varying") if over - own else array
        for array, own in zip(arrays, axes, strict=True)
    ]


def widens(equation: Any) -> bool:
    """Whether an equation converts `bfloat16` to `float32`."""
    return _converts(equation, jnp.bfloat16, jnp.float32)


def narrows(equation: Any) -> bool:
    """Whether an equation converts `float32` to `bfloat16`."""
    return _converts(equation, jnp.float32, jnp.bfloat16)


def _converts(equation: Any, before: Any, after: Any) -> bool:
    if equation.primitive is not lax.convert_element_type_p:
        return False
    return equation.invars[0].aval.dtype == before and equation.outvars[0].aval.dtype == after


def in_32_bits(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Convert operands of 16 bits to `float32`, and the result to the first operand's dtype.

    XLA:CPU does the same with `bfloat16`, and rounds after each operation.
    """

    @functools.wraps(compute)
    def computed(first: Any, *others: Any, **how: Any) -> Any:
        return compute(*map(_widened, (first, *others)), **how).astype(first.dtype)

    return computed


def _widened(array: Any) -> Any:
    is_narrow = getattr(array, "dtype", None) in (jnp.bfloat16, jnp.float16)
    return array.astype(jnp.float32) if is_narrow else array


def operation(
    name: str,
    formula: Callable[..., Any],
    types: Callable[..., Any],
    choose: Callable[..., Callable[..., Any] | None] | None = None,
    *,
    kernels: Collection[str] = (),
    several: bool = False,
) -> Primitive:
    """Make a primitive whose transformations are those of its formula, unless it gets others.

    `formula` takes arrays, and parameters by name, which are part of the program. `types` is its
    abstract evaluation. `choose(ctx, **params)` returns a lowering rule for CPUs or None, and is
    called where `may_replace` holds for `kernels`. `several` means that the result is a list.
    """
    made = Primitive(f"replicax_{name}")
    made.multiple_results = several
    made.def_abstract_eval(types)

    @functools.partial(jax.jit, static_argnames="how")
    def compiled(*arrays: Any, how: tuple[tuple[str, Any], ...]) -> Any:
        return made.bind(*arrays, **dict(how))

    def by_itself(*arrays: Any, **how: Any) -> Any:
        # With `jax_disable_jit`, `compiled` would call this function again.
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
    """Replace a primitive with one result on CPUs by `compute`, while `part` is on.

    `covers` is called with the operands' abstract values and the parameters by name. Where it is
    false, JAX's lowering is used. `compute` takes the operands and parameters, and is traced.
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
    """Choose the lowering rule of a primitive with one result on CPUs, while `part` is on.

    `choose(ctx, **params)` returns a rule, or None for JAX's own. It is called where `may_replace`
    holds for `kernels`, the kernels that its rules call.
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
    """The name of our replacement of a primitive of JAX."""
    return f"replicax_{primitive.name}"

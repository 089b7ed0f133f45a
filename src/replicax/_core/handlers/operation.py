"""Operations of JAX that a formula defines, so that a kernel can compute them on CPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from replicax._core.lowering import may_replace


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

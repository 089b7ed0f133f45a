"""What XLA:CPU gets for an operation of JAX: a rule of ours, in place of JAX's own or before it.

The one place that knows where JAX keeps its rules. A rule holds for all that JAX compiles for CPUs
in this process, from `replace` on; those for other devices stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from jax.interpreters import mlir

from replicax._core.cpu_tuning import is_on

_log = logging.getLogger("replicax")
_asked: set[tuple[Any, str]] = set()


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
    primitive: Any, part: str, choose: Callable[..., Any], *, cacheable: bool = True
) -> None:
    """Let a function choose an operation's rule on CPUs, while a part of the tuning is on.

    Args:
        primitive: The operation.
        part: The part of the tuning that this belongs to.
        choose: Called with JAX's context of the operation and its parameters: gives the rule, or
            None for JAX's own.
        cacheable: Whether JAX may lower it once for all that are alike. Where it must not, which
            are operations that hold programs, the rule is asked on all platforms: JAX cannot
            lower these by platform.
    """
    if (primitive, part) in _asked:
        return
    _asked.add((primitive, part))
    stock = _rule_for_cpus(primitive)
    if stock is None:
        _log.info("%s of the tuning for CPUs is without %s: not in this JAX", part, primitive)
        return

    def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
        here = cacheable or tuple(ctx.module_context.platforms) == ("cpu",)
        own = choose(ctx, **params) if here and is_on(part) else None
        return (own or stock)(ctx, *operands, **params)

    if cacheable:
        mlir.register_lowering(primitive, rule, platform="cpu")
    else:
        mlir.register_lowering(primitive, rule, cacheable=False)


def _rule_for_cpus(primitive: Any) -> Callable[..., Any] | None:
    """The rule of an operation; None in a JAX that keeps it elsewhere."""
    special = getattr(mlir, "_platform_specific_lowerings", {}).get("cpu", {})
    entry = special.get(primitive) or getattr(mlir, "_lowerings", {}).get(primitive)
    return getattr(entry, "rule", None)

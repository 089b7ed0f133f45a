"""What XLA:CPU gets for an operation of JAX: a rule of ours, in place of JAX's own or before it.

The one place that knows where JAX keeps its rules. A rule holds for all that JAX compiles for CPUs
in this process, from `replace` on; those for other devices stay as they are.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Generator
from contextvars import ContextVar
from typing import Any

from jax.interpreters import mlir

from replicax._core.cpu_tuning import is_on

_log = logging.getLogger("replicax")
_asked: set[tuple[Any, str]] = set()
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
        primitive: The operation.
        part: The part of the tuning that this belongs to.
        choose: Called with JAX's context of the operation and its parameters, where
            `may_replace` holds: gives the rule, or None for JAX's own.
        kernels: The names of those that the rule calls.
    """
    if (primitive, part) in _asked:
        return
    _asked.add((primitive, part))
    stock = _rule_for_cpus(primitive)
    if stock is None:
        _log.info("%s of the tuning for CPUs is without %s: not in this JAX", part, primitive)
        return

    def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
        replaced = is_on(part) and may_replace(ctx, kernels)
        own = choose(ctx, **params) if replaced else None
        return (own or stock)(ctx, *operands, **params)

    mlir.register_lowering(primitive, rule, platform="cpu")


def _rule_for_cpus(primitive: Any) -> Callable[..., Any] | None:
    """The rule of an operation; None in a JAX that keeps it elsewhere."""
    special = getattr(mlir, "_platform_specific_lowerings", {}).get("cpu", {})
    entry = special.get(primitive) or getattr(mlir, "_lowerings", {}).get(primitive)
    return getattr(entry, "rule", None)

"""Targets, sources and gradients of a tape: flattening, checks and shapes."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

from replicax._core.errors import PerReplicaMisuse, UsageError
from replicax._core.values import is_distributed
from replicax._keras import _compat


class UnconnectedGradients(enum.Enum):
    """The gradient by a source on which no target depends: `NONE` or `ZERO`."""

    NONE = "none"
    ZERO = "zero"


def leaves_of(nest: Any) -> list[Any]:
    """The arrays and variables of a nest, in order; None is a leaf."""
    return keras.tree.flatten(nest)


def checked(value: Any, what: str) -> Any:
    """Refuse anything but a JAX array, because a tape identifies arrays by object identity."""
    if is_distributed(value):
        raise PerReplicaMisuse(
            f"A tape cannot {what} a {type(value).__name__} value. Use the tape inside the "
            "function that you pass to `strategy.run`, or combine the value with "
            "`strategy.reduce` in the tape's block."
        )
    if not isinstance(value, jax.Array):
        raise UsageError(
            f"A tape cannot {what} a {type(value).__name__}. Convert it to an array first, with "
            "`jnp.asarray` or `tf.convert_to_tensor`."
        )
    return value


def seeds_for(targets: Sequence[Any], output_gradients: Any) -> list[tuple[Any, Any]]:
    """Pair each target with its output gradient; None means a gradient of ones."""
    given = [None] * len(targets) if output_gradients is None else leaves_of(output_gradients)
    if len(given) != len(targets):
        raise UsageError(
            f"`output_gradients` has {len(given)} gradients for {len(targets)} targets. Pass a "
            "nest with the targets' structure, None for a gradient of ones."
        )
    return [(t, _seed(t, gradient)) for t, gradient in zip(targets, given, strict=True)]


def _seed(target: Any, gradient: Any) -> Any:
    if gradient is None:
        return jnp.ones_like(target)
    gradient = jnp.asarray(gradient, target.dtype)
    if gradient.shape != target.shape:
        raise UsageError(
            f"An output gradient of shape {gradient.shape} does not fit its target of shape "
            f"{target.shape}. Use `jnp.broadcast_to`."
        )
    return gradient


def gradient_of(source: Any, gradients: Sequence[Any], unconnected: UnconnectedGradients) -> Any:
    """The gradient by a source, from the gradients by its copies."""
    if gradients or unconnected is UnconnectedGradients.NONE:
        return total(gradients)
    return jnp.zeros(tuple(source.shape), stored_type(source))


def total(gradients: Sequence[Any]) -> Any:
    """The sum of gradients; None for an empty list."""
    return functools.reduce(lax.add, gradients) if gradients else None


def basis_for(target: Any) -> Any:
    """One-hot output gradients, one for each element of a target."""
    return jnp.eye(target.size, dtype=target.dtype).reshape(-1, *target.shape)


def basis_of_rows(target: Any, source: Any) -> Any:
    """Output gradients that are 1 at one element of each row, and 0 elsewhere.

    Rows are independent, so one backward pass serves all of them.
    """
    if not target.shape or target.shape[:1] != tuple(source.shape)[:1]:
        raise UsageError(
            f"No batch Jacobian of shapes {target.shape} and {tuple(source.shape)}: target and "
            "source need the same number of rows. Use `jacobian`."
        )
    elements = math.prod(target.shape[1:])
    basis = jnp.eye(elements, dtype=target.dtype).reshape(-1, 1, *target.shape[1:])
    return jnp.broadcast_to(basis, (elements, *target.shape))


def jacobian_of(
    rows: Any,
    by: Sequence[int],
    dtype: Any,
    shape: Sequence[int],
    unconnected: UnconnectedGradients,
) -> Any:
    """Shape a Jacobian from its rows, one for each element of a target; None if unconnected.

    `by` and `dtype` are the shape and dtype of the source, `shape` is the target's.
    """
    if rows is not None:
        return rows.reshape(*shape, *by)
    return jnp.zeros((*shape, *by), dtype) if unconnected is UnconnectedGradients.ZERO else None


def stored_type(source: Any) -> Any:
    """The dtype of a source's gradient."""
    is_variable = isinstance(source, _compat.KerasVariable)
    return _compat.stored_dtype(source) if is_variable else source.dtype

"""Targets, sources and gradients of a tape: nests taken apart, checked, and given shape."""

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
    """What the gradient by a source is that no target depends on: `NONE` or `ZERO`."""

    NONE = "none"
    ZERO = "zero"


def leaves_of(nest: Any) -> list[Any]:
    """The arrays and variables of a nest, in order; None is a leaf."""
    return keras.tree.flatten(nest)


def checked(value: Any, what: str) -> Any:
    """An array, or an error: a tape knows arrays by identity, and must have made them."""
    if is_distributed(value):
        raise PerReplicaMisuse(
            f"A tape can {what} an array. Received: a {type(value).__name__} value, which has a "
            "component for each replica. Each replica differentiates its own. Use the tape inside "
            "the function that `strategy.run` is given, or combine the value with "
            "`strategy.reduce` in the tape's block."
        )
    if not isinstance(value, jax.Array):
        raise UsageError(
            f"A tape can {what} an array or a variable. Received: a {type(value).__name__}. JAX "
            "makes a new array of it in each operation, so that it cannot be followed. Make one "
            "before, with `jnp.asarray` or `tf.convert_to_tensor`."
        )
    return value


def seeds_for(targets: Sequence[Any], output_gradients: Any) -> list[tuple[Any, Any]]:
    """The targets, each with the gradient that the way back begins with; None is one of ones."""
    given = [None] * len(targets) if output_gradients is None else leaves_of(output_gradients)
    if len(given) != len(targets):
        raise UsageError(
            "There is one output gradient for each target. Received: "
            f"{len(given)} for {len(targets)} targets. They are matched in order. Give a nest "
            "as the targets', with None for a gradient of ones."
        )
    return [(t, _seed(t, gradient)) for t, gradient in zip(targets, given, strict=True)]


def _seed(target: Any, gradient: Any) -> Any:
    if gradient is None:
        return jnp.ones_like(target)
    gradient = jnp.asarray(gradient, target.dtype)
    if gradient.shape != target.shape:
        raise UsageError(
            "An output gradient has the shape of its target. Received: shape "
            f"{gradient.shape} for a target of shape {target.shape}. Each element of the target is "
            "weighted by one number. Broadcast it with `jnp.broadcast_to`."
        )
    return gradient


def gradient_of(source: Any, gradients: Sequence[Any], unconnected: UnconnectedGradients) -> Any:
    """The gradient by a source, from those by the values that stand for it."""
    if gradients or unconnected is UnconnectedGradients.NONE:
        return total(gradients)
    return jnp.zeros(tuple(source.shape), stored_type(source))


def total(gradients: Sequence[Any]) -> Any:
    """The sum of gradients; None if there is none."""
    return functools.reduce(lax.add, gradients) if gradients else None


def basis_for(target: Any) -> Any:
    """For each element of a target, the gradient that is 1 there and 0 elsewhere."""
    return jnp.eye(target.size, dtype=target.dtype).reshape(-1, *target.shape)


def basis_of_rows(target: Any, source: Any) -> Any:
    """For each element of a row, the gradient that is 1 there, in all rows at once.

    Rows do not mix: one way back serves all of them.
    """
    if not target.shape or target.shape[:1] != tuple(source.shape)[:1]:
        raise UsageError(
            "A batch Jacobian is of a target and a source with as many rows. Received: shapes "
            f"{target.shape} and {tuple(source.shape)}. Row i of the one is differentiated by row "
            "i of the other. Use `jacobian`."
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
    """A Jacobian from its rows, if any, one for each element of a target of this shape.

    `by` and `dtype` are the shape and type of what is differentiated by.
    """
    if rows is not None:
        return rows.reshape(*shape, *by)
    return jnp.zeros((*shape, *by), dtype) if unconnected is UnconnectedGradients.ZERO else None


def stored_type(source: Any) -> Any:
    """The type of a source's gradient."""
    is_variable = isinstance(source, _compat.KerasVariable)
    return _compat.stored_dtype(source) if is_variable else source.dtype

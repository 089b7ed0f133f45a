"""Targets, sources and gradients of a tape: nests taken apart, checked, and given shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

from replicax._core.errors import PerReplicaMisuse, UsageError
from replicax._core.unconnected import UnconnectedGradients
from replicax._core.values import is_distributed
from replicax._keras import _compat


def leaves_of(nest: Any) -> list[Any]:
    """The arrays and variables of a nest, in order; None is a leaf."""
    return keras.tree.flatten(nest)


def checked(value: Any, what: str) -> Any:
    """An array, or an error: a tape knows arrays by identity, and must have made them.

    Args:
        value: What was given.
        what: What the tape was asked to do with it.
    """
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


def seed(target: Any, gradient: Any) -> Any:
    """The gradient that the way back begins with at a target."""
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


def total(gradients: Sequence[Any]) -> Any:
    """The sum of gradients; None if there is none."""
    if not gradients:
        return None
    result, *others = gradients
    for other in others:
        result = lax.add(result, other)
    return result


def zeros_for(source: Any, shape: Sequence[int] = ()) -> Any:
    """A gradient of zeros by a source, of each element of a shape."""
    if isinstance(source, _compat.KerasVariable):
        return jnp.zeros((*shape, *source.shape), _compat.stored_dtype(source))
    return jnp.zeros((*shape, *source.shape), source.dtype)


def jacobian_of(
    rows: Any, source: Any, shape: Sequence[int], unconnected: UnconnectedGradients
) -> Any:
    """The gradients by a source of all elements of a target, in the target's shape."""
    if rows is not None:
        return rows.reshape(*shape, *rows.shape[1:])
    return zeros_for(source, shape) if unconnected is UnconnectedGradients.ZERO else None


def value_of(value: Any) -> Any:
    """A variable's value; anything else as it is."""
    return value.value if isinstance(value, _compat.KerasVariable) else value

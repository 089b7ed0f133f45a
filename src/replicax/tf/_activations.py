"""Activations: `relu`, `softmax` and the like."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.tf._calls import array, array_function


@array_function
def relu(features: Any, name: str | None = None) -> Any:
    """The elements, and 0 for those below it."""
    xp, x = array(features)
    return np.maximum(x, 0).astype(x.dtype) if xp is np else jax.nn.relu(x)


@array_function
def relu6(features: Any, name: str | None = None) -> Any:
    """The elements, 0 for those below it, and 6 for those above."""
    return jax.nn.relu6(jnp.asarray(features))


@array_function
def leaky_relu(features: Any, alpha: Any = 0.2, name: str | None = None) -> Any:
    """The elements, those below 0 times `alpha`."""
    return jax.nn.leaky_relu(jnp.asarray(features), alpha)


@array_function
def elu(features: Any, name: str | None = None) -> Any:
    """The elements, `exp(x) - 1` of those below 0."""
    return jax.nn.elu(jnp.asarray(features))


@array_function
def selu(features: Any, name: str | None = None) -> Any:
    """`elu`, scaled so that layers keep mean and variance."""
    return jax.nn.selu(jnp.asarray(features))


@array_function
def gelu(features: Any, approximate: bool = False, name: str | None = None) -> Any:
    """The elements times the normal distribution function of them."""
    return jax.nn.gelu(jnp.asarray(features), approximate)


@array_function
def silu(features: Any, beta: Any = 1.0) -> Any:
    """The elements times the sigmoid of them times `beta`."""
    x = jnp.asarray(features)
    return x * jax.nn.sigmoid(beta * x)


swish = silu


@array_function
def crelu(features: Any, axis: int = -1, name: str | None = None) -> Any:
    """`relu` of the elements and of their negatives, side by side."""
    x = jnp.asarray(features)
    return jax.nn.relu(jnp.concatenate([x, -x], axis=axis))


@array_function
def softplus(features: Any, name: str | None = None) -> Any:
    """`log(1 + exp(x))` of each element."""
    return jax.nn.softplus(jnp.asarray(features))


@array_function
def softsign(features: Any, name: str | None = None) -> Any:
    """`x / (1 + |x|)` of each element."""
    return jax.nn.soft_sign(jnp.asarray(features))


@array_function
def softmax(logits: Any, axis: Any = None, name: str | None = None) -> Any:
    """The exponentials divided by their sum along an axis, the last by default."""
    return jax.nn.softmax(jnp.asarray(logits), axis=-1 if axis is None else int(axis))


@array_function
def log_softmax(logits: Any, axis: Any = None, name: str | None = None) -> Any:
    """The logarithm of `softmax`."""
    return jax.nn.log_softmax(jnp.asarray(logits), axis=-1 if axis is None else int(axis))

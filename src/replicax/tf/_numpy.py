"""The functions of `jax.numpy`, which here take variables, too."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from replicax._core.host_calls import array_of


def __getattr__(name: str) -> Any:
    function = getattr(jnp, name)
    if isinstance(function, type) or not callable(function):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax.tree.map(_value, (args, kwargs))
        return function(*args, **kwargs)

    return call


def __dir__() -> list[str]:
    return dir(jnp)


def _value(argument: Any) -> Any:
    return array_of(argument) if hasattr(argument, "__jax_array__") else argument

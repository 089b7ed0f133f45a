"""Nests of arrays as JSON: lists, tuples and dicts of specs, numbers, text and None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from replicax._core.errors import UsageError
from replicax._function.concrete import Spec


def to_json(nest: Any) -> Any:
    """A nest as data of JSON."""
    if isinstance(nest, Spec):
        assert nest.shape is not None  # a program's are known
        return {"spec": [list(nest.shape), nest.dtype_name, nest.name]}
    if isinstance(nest, dict):
        return {"dict": [[key, to_json(value)] for key, value in nest.items()]}
    if isinstance(nest, list | tuple):
        kind = "tuple" if isinstance(nest, tuple) else "list"
        return {kind: [to_json(value) for value in nest]}
    if nest is None or isinstance(nest, bool | int | float | str):
        return {"value": nest}
    raise UsageError(
        "What a saved function takes and gives is made of arrays, numbers, text, lists and dicts. "
        f"Received: a {type(nest).__name__}. It could not be written down. Keep it as an "
        "attribute, or pass what it consists of."
    )


def from_json(data: dict[str, Any]) -> Any:
    """The nest again."""
    ((kind, content),) = data.items()
    if kind == "spec":
        return Spec(tuple(content[0]), jnp.dtype(content[1]), content[2])
    if kind == "dict":
        return {key: from_json(value) for key, value in content}
    if kind in ("list", "tuple"):
        values = [from_json(value) for value in content]
        return tuple(values) if kind == "tuple" else values
    return content


def specs_of(nest: Any) -> list[Spec]:
    """The specs in a nest, in order."""
    found: list[Spec] = []
    filled(nest, lambda spec: found.append(spec))
    return found


def filled(nest: Any, value: Callable[[Spec], Any]) -> Any:
    """A nest with something for each of its specs, in order."""
    if isinstance(nest, Spec):
        return value(nest)
    if isinstance(nest, dict):
        return {key: filled(one, value) for key, one in nest.items()}
    if isinstance(nest, list | tuple):
        values = [filled(one, value) for one in nest]
        return tuple(values) if isinstance(nest, tuple) else values
    return nest

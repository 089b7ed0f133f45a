"""Nests of arrays as JSON: lists, tuples and dicts of specs, numbers, text and None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from replicax._core.errors import UsageError
from replicax._function.concrete import Spec


def to_json(nest: Any) -> Any:
    """Serialize a nest to JSON data."""
    if isinstance(nest, Spec):
        assert nest.shape is not None  # a traced program has known shapes
        return {"spec": [list(nest.shape), nest.dtype_name, nest.name]}
    if isinstance(nest, dict):
        return {"dict": [[key, to_json(value)] for key, value in nest.items()]}
    if isinstance(nest, list | tuple):
        kind = "tuple" if isinstance(nest, tuple) else "list"
        return {kind: [to_json(value) for value in nest]}
    if nest is None or isinstance(nest, bool | int | float | str):
        return {"value": nest}
    raise UsageError(
        "Arguments and results of a saved function are arrays, numbers, text, lists and dicts. "
        f"Received: a {type(nest).__name__}, which JSON cannot hold. Keep it as an "
        "attribute, or pass its parts."
    )


def from_json(data: dict[str, Any]) -> Any:
    """Read a nest from the JSON data of `to_json`."""
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
    """Replace each spec of a nest by `value(spec)`, in order."""
    if isinstance(nest, Spec):
        return value(nest)
    if isinstance(nest, dict):
        return {key: filled(one, value) for key, one in nest.items()}
    if isinstance(nest, list | tuple):
        values = [filled(one, value) for one in nest]
        return tuple(values) if isinstance(nest, tuple) else values
    return nest

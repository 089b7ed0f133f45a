"""Plain data in checkpoints: `Value`, and states of iterators as JSON."""

from __future__ import annotations

import base64
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._core.errors import UsageError


@final
class Value:
    """A holder of a number, or of other plain data, that a checkpoint saves and restores.

    Args:
        value: Numbers, strings, None, lists, tuples, dicts and NumPy arrays, in any nest.

    Example:
        >>> import replicax as rx
        >>> step = rx.train.Value(0)
        >>> step.value += 1
        >>> step
        Value(1)
    """

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def get_state(self) -> Any:
        """The value."""
        return self.value

    def set_state(self, state: Any) -> None:
        """Take over a value."""
        self.value = state

    def __repr__(self) -> str:
        return f"Value({self.value!r})"


def encoded(value: Any) -> Any:
    """Plain data as JSON; types that JSON does not have are marked."""
    if value is None or isinstance(value, (bool, int, float, str)) and type(value) in _SCALARS:
        return value
    if isinstance(value, list):
        return [encoded(item) for item in value]
    if isinstance(value, tuple):
        return {"!": "tuple", "items": [encoded(item) for item in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and "!" not in value:
            return {key: encoded(item) for key, item in value.items()}
        pairs = [[encoded(key), encoded(item)] for key, item in value.items()]
        return {"!": "dict", "pairs": pairs}
    if isinstance(value, bytes):
        return {"!": "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return _encoded_array(np.asarray(value), isinstance(value, np.generic))
    raise UsageError(
        f"Cannot write a {type(value).__name__} to a checkpoint. Let `get_state` return plain "
        "data: numbers, strings, None, arrays, lists, tuples and dicts."
    )


_SCALARS = {bool, int, float, str}


def _encoded_array(array: np.ndarray, is_scalar: bool) -> dict[str, Any]:
    head = {"!": "scalar" if is_scalar else "array", "shape": list(array.shape)}
    if array.dtype == object:
        return {**head, "items": [encoded(item) for item in array.reshape(-1)]}
    name = array.dtype.str if array.dtype.kind in "USmM" else array.dtype.name
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {**head, "dtype": name, "data": data}


def decoded(value: Any) -> Any:
    """The value that `encoded` was given."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value.get("!"):
        case None:
            return {key: decoded(item) for key, item in value.items()}
        case "tuple":
            return tuple(decoded(item) for item in value["items"])
        case "dict":
            return {decoded(key): decoded(item) for key, item in value["pairs"]}
        case "bytes":
            return base64.b64decode(value["data"])
    array = _decoded_array(value)
    return array[()] if value["!"] == "scalar" else array


def _decoded_array(value: dict[str, Any]) -> np.ndarray:
    if "items" in value:
        array = np.empty(len(value["items"]), object)
        array[:] = [decoded(item) for item in value["items"]]
    else:
        dtype = (
            np.dtype(value["dtype"]) if value["dtype"][0] in "<>|" else jnp.dtype(value["dtype"])
        )
        array = np.frombuffer(base64.b64decode(value["data"]), dtype).copy()
    return array.reshape(value["shape"])

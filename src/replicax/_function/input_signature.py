"""The input signature of a compiled function: the specs that its arguments must match."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import numpy as np
from jax.core import Tracer

from replicax._core import seams
from replicax._core.errors import SignatureMismatch
from replicax._core.values import Mirrored, PerReplica, is_distributed


def is_spec(value: Any) -> bool:
    """Whether a value is a spec of an array, as `tf.TensorSpec` and `rx.data.ArraySpec` are."""
    described = hasattr(value, "shape") and hasattr(value, "dtype")
    return described and not (hasattr(value, "__array__") or hasattr(value, "__jax_array__"))


def numpy_dtype(dtype: Any) -> Any:
    """The NumPy dtype of a spec's dtype; None for text."""
    if dtype in (str, bytes):
        return None
    found = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    return None if found.kind in "OUS" else jax.dtypes.canonicalize_dtype(found)


def flatten_specs(specs: Any) -> tuple[list[Any], Any]:
    return jax.tree.flatten(specs, is_leaf=is_spec)


# Constants of these types are compared by value, all others by identity.
PLAIN = (bool, int, float, complex, str, bytes)


@final
class InputSignature:
    """One nest of specs for each of a function's first arguments, without `self`."""

    def __init__(self, parameters: Sequence[inspect.Parameter], specs: Sequence[Any]) -> None:
        self.parameters = parameters
        self.specs = tuple(specs)

    @classmethod
    def of(cls, fn: Callable[..., Any], specs: Any) -> InputSignature | None:
        """The signature that a user gave for `fn`; None if there is none."""
        if specs is None:
            return None
        parameters = list(inspect.signature(fn).parameters.values())
        if parameters and parameters[0].name == "self":
            parameters = parameters[1:]
        several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        if not isinstance(specs, list | tuple) or (len(specs) > len(parameters) and not several):
            spec = seams.spelled("tf.TensorSpec", "rx.data.ArraySpec")
            raise SignatureMismatch(
                "`input_signature` must be a list with one spec for each of "
                f"{[p.name for p in parameters]}, got {specs!r}. Write "
                f"`input_signature=[{spec}(shape, dtype)]`."
            )
        return cls(parameters, specs)

    def bound(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of a call, checked and converted to their specs."""
        names = [p.name for p in self.parameters]
        given, rest = list(args), dict(kwargs)
        while len(given) < len(self.specs) and names[len(given)] in rest:
            given.append(rest.pop(names[len(given)]))
        if len(given) < len(self.specs):
            raise SignatureMismatch(
                f"`input_signature` has {len(self.specs)} specs, got {len(given)} arguments. Pass "
                f"{names[len(given) : len(self.specs)]} as well."
            )
        for number, spec in enumerate(self.specs):
            name = names[number] if number < len(names) else str(number)
            given[number] = fitted(spec, given[number], name)
        return tuple(given), rest


def fitted(spec: Any, value: Any, name: str) -> Any:
    """Check an argument against its nest of specs, and convert it; `name` is for errors."""
    leaves, tree = flatten_specs(spec)
    try:
        parts = tree.flatten_up_to(value)
    except ValueError as error:
        raise SignatureMismatch(
            f"Binding inputs to the function failed: '{name}' must be {tree}, got "
            f"{jax.tree.structure(value)}. Pass the same nest of lists and dicts."
        ) from error
    pairs = zip(leaves, parts, strict=True)
    return tree.unflatten([_fitted_leaf(leaf, part, name) for leaf, part in pairs])


def _fitted_leaf(spec: Any, value: Any, name: str) -> Any:
    if not is_spec(spec):
        is_plain = type(value) is type(spec) and isinstance(spec, PLAIN)
        if value is spec or (is_plain and value == spec):
            return value
        raise SignatureMismatch(
            f"'{name}' must be {spec!r}, which is compiled into the program, got {value!r}. Leave "
            "it out, or make a function for this value."
        )
    if spec.dtype is None:
        return value
    own = getattr(value, "spec", None)  # of a sparse or ragged tensor
    if is_spec(own) or getattr(spec, "value_type", jax.Array) is not jax.Array:
        return _fitted_composite(spec, own, value, name)
    dtype = numpy_dtype(spec.dtype)
    if dtype is None:
        return _fitted_text(spec, value, name)
    if not (is_distributed(value) or isinstance(value, jax.Array | Tracer)):
        given = np.asarray(getattr(value, "value", value))
        text = given.dtype.kind in "OSU"
        # As in NumPy, arrays of floats are truncated; only Python floats are refused.
        fraction = given.dtype.kind in "fc" and not hasattr(value, "dtype")
        if text or (fraction and np.issubdtype(dtype, np.integer)):
            raise SignatureMismatch(
                f"Cannot convert '{name}' to {spec}: {value!r} is "
                f"{'text' if text else 'a fraction'}. Cast it."
            )
        value = given.astype(dtype)
    for part in _parts(value):
        shape = None if spec.shape is None else tuple(spec.shape)
        if part.dtype != dtype or not _fits(shape, part.shape):
            raise SignatureMismatch(
                f"'{name}' must be {spec}, got {part.dtype}{list(part.shape)}. Cast or reshape "
                "it, or change `input_signature`; None stands for an axis of any size."
            )
    return value


def _fitted_composite(spec: Any, own: Any, value: Any, name: str) -> Any:
    if own is None or not getattr(spec, "is_compatible_with", spec.__eq__)(own):
        raise SignatureMismatch(
            f"'{name}' must be {spec}, got {own or value!r}. Convert it, or change "
            "`input_signature`."
        )
    return value


def _fitted_text(spec: Any, value: Any, name: str) -> Any:
    kind = np.asarray(value).dtype.kind
    if kind not in "OSU" or not _fits(spec.shape, np.shape(value)):
        raise SignatureMismatch(
            f"'{name}' must be text, {spec}, got {value!r}. Pass text, or change the spec."
        )
    return value


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, Mirrored):
        return [value.value]
    if not isinstance(value, PerReplica):
        return [value]
    if value.parts is not None:
        return value.parts
    return [jax.ShapeDtypeStruct(value.stacked.shape[1:], value.stacked.dtype)]


def _fits(wanted: tuple[Any, ...] | None, shape: tuple[int, ...]) -> bool:
    if wanted is None or len(wanted) != len(shape):
        return wanted is None
    return all(want in (None, size) for want, size in zip(wanted, shape, strict=True))

"""`get_concrete_function`: a compiled function for arguments of a kind, and what it looks like."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from replicax._core.errors import UsageError
from replicax._function.input_signature import (
    InputSignature,
    fitted,
    flatten_specs,
    is_spec,
    numpy_dtype,
)
from replicax._keras.capture import Captured, capture, is_array
from replicax._keras.feeding import Elements

logger = logging.getLogger("replicax")


@final
@dataclass(frozen=True)
class Spec:
    """The shape and type of an array.

    Args:
        shape: Its axes; None for one of any size.
        dtype: Its type.
        name: The argument's.
    """

    shape: tuple[int | None, ...]
    dtype: Any
    name: str | None = None

    def __repr__(self) -> str:
        named = "" if self.name is None else f", name={self.name!r}"
        return f"TensorSpec(shape={self.shape}, dtype={np.dtype(self.dtype).name}{named})"


@final
@dataclass(frozen=True)
class Traced:
    """A function for arrays of specs, as a pure one.

    Args:
        captured: From the variables and the arrays of the specs to the outputs.
        shapes: Those arrays, with symbols for axes of any size.
        specs: The same, with None there.
    """

    captured: Captured
    shapes: Sequence[Any]
    specs: Sequence[Spec]


@final
class ConcreteFunction:
    """A compiled function for arguments of a kind.

    **Differs from TF:** axes of any size are compiled for each size when it is called.

    Args:
        compiled: What `function` returned, or a method of it.
        args: Specs, arrays or constants.
        kwargs: The same, by name.
        inputs: The input signature, if there is one.
    """

    def __init__(
        self,
        compiled: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        inputs: InputSignature | None,
    ) -> None:
        if inputs is not None and not args and not kwargs:
            args = inputs.specs
        self._compiled = compiled
        self._fn = _python(compiled)
        self.__name__ = getattr(compiled, "__name__", "function")
        signature = inspect.signature(self._fn)
        bound = signature.bind(*args, **kwargs)
        self._given = {name: _as_specs(value, name) for name, value in bound.arguments.items()}
        self._signature = signature

    @property
    def name(self) -> str:
        """Its name."""
        return self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            SignatureMismatch: If an argument does not fit its spec.
        """
        given = {**self._given, **self._signature.bind_partial(*args, **kwargs).arguments}
        missing = [n for n, value in given.items() if value is self._given[n] and _has_specs(value)]
        if missing:
            raise UsageError(
                "A concrete function gets the arrays that it was made for. Received: a call "
                f"without {missing}. Of them it knows shapes only. Pass them, too."
            )
        for name, value in given.items():
            given[name] = fitted(self._given[name], value, name) if name in self._given else value
        bound = inspect.BoundArguments(self._signature, given)  # pyright: ignore[reportArgumentType]
        return self._compiled(*bound.args, **bound.kwargs)

    @property
    def parameters(self) -> list[tuple[str, int]]:
        """The names and kinds of its parameters."""
        return [(p.name, int(p.kind)) for p in self._signature.parameters.values()]

    @property
    def structured_input_signature(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The specs of its positional arguments, and of those by name."""
        bound = inspect.BoundArguments(self._signature, dict(self._given))  # pyright: ignore[reportArgumentType]
        return bound.args, bound.kwargs

    @functools.cached_property
    def structured_outputs(self) -> Any:
        """The specs of its results."""
        captured = self.traced().captured
        found = captured.jaxpr.out_avals[: captured.num_outputs]
        return captured.assemble([_spec_of(aval) for aval in found])

    def traced(self) -> Traced:
        """The function as a pure one, for axes of any size."""
        args, kwargs = self.structured_input_signature
        leaves, tree = flatten_specs((args, kwargs))
        specs = [leaf for leaf in leaves if isinstance(leaf, Spec)]

        def fn(arrays: Sequence[Any]) -> Any:
            rest = iter(arrays)
            filled = [next(rest) if isinstance(leaf, Spec) else leaf for leaf in leaves]
            args, kwargs = tree.unflatten(filled)
            result = self._fn(*args, **kwargs)
            return jax.tree.map(_sizes_as_arrays, result, is_leaf=_is_open_shape)

        def traced(rows: str) -> Traced:
            shapes = symbolic(specs, rows)
            return Traced(capture(fn, shapes, reader=Elements(())), shapes, specs)

        if sum(spec.shape[:1] == (None,) for spec in specs) > 1:
            try:
                return traced("rows{}")
            except Exception:  # they are added, perhaps, which needs equally many
                logger.debug("One number of rows for all arguments of %s.", self.name)
        return traced("rows")


def _python(compiled: Any) -> Any:
    fn, instance = compiled.python_function, getattr(compiled, "instance", None)
    return fn if instance is None else functools.partial(fn, instance)


def _as_specs(value: Any, name: str) -> Any:
    leaves, tree = flatten_specs(value)
    found = []
    for number, leaf in enumerate(leaves):
        own = name if len(leaves) == 1 else f"{name}_{number}"
        if is_spec(leaf) or is_array(leaf):
            named = getattr(leaf, "name", None) or own
            dtype = leaf.dtype if numpy_dtype(leaf.dtype) is None else numpy_dtype(leaf.dtype)
            leaf = Spec(tuple(leaf.shape), dtype, named)
        found.append(leaf)
    return tree.unflatten(found)


def _has_specs(value: Any) -> bool:
    return any(isinstance(leaf, Spec) for leaf in flatten_specs(value)[0])


def _spec_of(aval: Any) -> Spec:
    shape = tuple(size if isinstance(size, int) else None for size in aval.shape)
    return Spec(shape, aval.dtype)


def _sizes_as_arrays(leaf: Any) -> Any:
    """What a function returns; a size that is not known yet is computed by the program."""
    if _is_open_shape(leaf):
        return jnp.stack([jnp.asarray(size) for size in leaf])
    return jnp.asarray(leaf) if jax.export.is_symbolic_dim(leaf) else leaf


def _is_open_shape(value: Any) -> bool:
    if not isinstance(value, tuple) or not any(map(jax.export.is_symbolic_dim, value)):
        return False
    return all(isinstance(size, int) or jax.export.is_symbolic_dim(size) for size in value)


def symbolic(specs: Sequence[Spec], rows: str) -> list[jax.ShapeDtypeStruct]:
    """Shapes with a symbol for each axis of any size; `rows`, of the number, for the first."""
    scope = jax.export.SymbolicScope()
    shapes = []
    for number, spec in enumerate(specs):
        names = [f"size{number}_{axis}" for axis in range(len(spec.shape))]
        names[:1] = [rows.format(number) for _ in names[:1]]
        text = ", ".join(
            name if size is None else str(size)
            for name, size in zip(names, spec.shape, strict=True)
        )
        shape = jax.export.symbolic_shape(text, scope=scope)
        shapes.append(jax.ShapeDtypeStruct(shape, spec.dtype))
    return shapes

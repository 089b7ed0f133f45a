"""The recorded operations of a tape, and the backward pass over them.

`recording_trace.py` adds the operations; `tape.py` handles variables.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import keras
from jax import lax

from replicax._core import seams
from replicax._core.errors import PerReplicaMisuse, UsageError
from replicax._core.values import is_distributed
from replicax._keras import _compat


class TapeEntry(NamedTuple):
    """A recorded operation."""

    # From the differentiable operands to the differentiable results and the other results.
    function: Callable[..., tuple[list[Any], Any]]
    operands: tuple[Any, ...]  # only the differentiable ones
    inputs: tuple[int, ...]  # the `id`s of these operands
    outputs: tuple[int, ...]  # the `id`s of the differentiable results
    backward: Callable[[list[Any]], Sequence[Any]]  # from gradients of results to operands'


@final
class TapeEntries:
    """Operations in the order of their execution, and the values they depend on.

    Values are identified by `id`, and kept alive so that no other object gets the same `id`.
    """

    def __init__(self) -> None:
        self.recording = False
        self._entries: list[TapeEntry] = []
        self._values: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._values

    def watch(self, value: Any) -> None:
        self._values[id(value)] = value

    def add(
        self,
        function: Callable[..., tuple[list[Any], Any]],
        operands: Sequence[Any],
        results: Sequence[Any],
        backward: Callable[[list[Any]], Sequence[Any]],
    ) -> None:
        """Add an operation, and watch its results; each must be a distinct object."""
        for result in results:
            self.watch(result)
        inputs, outputs = tuple(map(id, operands)), tuple(map(id, results))
        self._entries.append(TapeEntry(function, tuple(operands), inputs, outputs, backward))

    def clear(self) -> None:
        self._entries.clear()
        self._values.clear()

    def backward(
        self, seeds: Sequence[tuple[Any, Any]], sources: Sequence[Any], *, again: bool = False
    ) -> dict[int, Any]:
        """Gradients by the sources, by `id`; unconnected sources are left out.

        `seeds` are targets with their output gradients. `again` repeats each operation under the
        current trace, for second derivatives: the residuals of the recorded forward pass were not
        recorded themselves.
        """
        wanted = set(map(id, sources))
        reached = self._reached(wanted)
        gradients: dict[int, Any] = {}
        found: dict[int, Any] = {}
        for target, gradient in seeds:
            if id(target) in reached:
                _add(gradients, id(target), gradient)
        for entry in reversed(self._entries[:]):
            if reached.isdisjoint(entry.inputs):
                continue
            if not any(output in gradients for output in entry.outputs):
                continue
            given = {key: gradients.pop(key, None) for key in entry.outputs}
            # All uses of a value are later entries, so its gradient is complete here.
            found.update({k: g for k, g in given.items() if k in wanted and g is not None})
            by_inputs = self._backward(entry, given, again=again)
            for key, gradient in zip(entry.inputs, by_inputs, strict=True):
                if key in reached:
                    _add(gradients, key, gradient)
        found.update({key: gradients[key] for key in wanted & gradients.keys()})
        return found

    def _reached(self, sources: set[int]) -> set[int]:
        """The `id`s of the sources and of all values that depend on them."""
        reached = sources & self._values.keys()
        for entry in self._entries:
            if not reached.isdisjoint(entry.inputs):
                reached.update(entry.outputs)
        return reached

    def _backward(
        self, entry: TapeEntry, given: Mapping[int, Any], *, again: bool
    ) -> Sequence[Any]:
        backward = entry.backward
        if again:
            _, backward, _ = jax.vjp(entry.function, *entry.operands, has_aux=True)
        gradients = [
            jnp.zeros_like(self._values[key]) if gradient is None else gradient
            for key, gradient in given.items()
        ]
        return backward(gradients)


def _add(gradients: dict[int, Any], key: int, gradient: Any) -> None:
    known = gradients.get(key)
    gradients[key] = gradient if known is None else lax.add(known, gradient)


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
            f"`{seams.spelled('tf.convert_to_tensor', 'jnp.asarray')}`."
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

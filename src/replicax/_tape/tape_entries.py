"""The recorded operations of a tape, and the backward pass over them.

`recording_trace.py` adds the operations; `tape.py` handles variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jax import lax


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
        """Record the operations that depend on a value."""
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
        """Forget all operations and values."""
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
            for key, gradient in zip(
                entry.inputs, self._backward(entry, given, again=again), strict=True
            ):
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

"""The list of what was computed, and the way back along it: reverse-mode derivatives.

How operations get onto the list is in recording_trace.py; the tape that users see, which knows
variables, is `_tape/tape.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jax import lax


class Operation(NamedTuple):
    """One differentiable operation that was carried out.

    Args:
        function: From the differentiable operands to the differentiable results and the others.
        operands: The differentiable operands.
        inputs: Their `id`s.
        outputs: The `id`s of the differentiable results.
        backward: From the gradients of the results to those of the operands.
    """

    function: Callable[..., tuple[list[Any], Any]]
    operands: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    backward: Callable[[list[Any]], Sequence[Any]]


@final
class WengertList:
    """Operations in the order in which they were carried out, and the values they depend on.

    Values are known by identity. They are kept, so that no other object gets the same `id`.
    """

    def __init__(self) -> None:
        self.recording = False
        self._operations: list[Operation] = []
        self._values: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._operations)

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._values

    def watch(self, value: Any) -> None:
        """Follow what is computed from a value."""
        self._values[id(value)] = value

    def add(
        self,
        function: Callable[..., tuple[list[Any], Any]],
        operands: Sequence[Any],
        results: Sequence[Any],
        backward: Callable[[list[Any]], Sequence[Any]],
    ) -> None:
        """Note an operation, and follow its results; each must be an object of its own."""
        for result in results:
            self.watch(result)
        inputs, outputs = tuple(map(id, operands)), tuple(map(id, results))
        self._operations.append(Operation(function, tuple(operands), inputs, outputs, backward))

    def clear(self) -> None:
        """Forget everything."""
        self._operations.clear()
        self._values.clear()

    def pull_back(
        self, seeds: Sequence[tuple[Any, Any]], sources: Sequence[Any], *, again: bool = False
    ) -> dict[int, Any]:
        """The gradients of the sources, by `id`; what does not reach the targets is left out.

        Each target comes with its gradient. `again` computes each operation once more, under the
        current trace: what was computed for the way back while it was recorded is unknown to this
        list itself, and second derivatives are to be taken with it.
        """
        wanted = set(map(id, sources))
        reached = self._reached(wanted)
        gradients: dict[int, Any] = {}
        found: dict[int, Any] = {}
        for target, gradient in seeds:
            if id(target) in reached:
                _add(gradients, id(target), gradient)
        for operation in reversed(self._operations[:]):
            if reached.isdisjoint(operation.inputs):
                continue
            if not any(output in gradients for output in operation.outputs):
                continue
            given = {key: gradients.pop(key, None) for key in operation.outputs}
            # All uses of a value come after it on the list: its gradient is complete here.
            found.update({k: g for k, g in given.items() if k in wanted and g is not None})
            for key, gradient in zip(
                operation.inputs, self._backward(operation, given, again=again), strict=True
            ):
                if key in reached:
                    _add(gradients, key, gradient)
        found.update({key: gradients[key] for key in wanted & gradients.keys()})
        return found

    def _reached(self, sources: set[int]) -> set[int]:
        """What was computed from the sources, and themselves."""
        reached = sources & self._values.keys()
        for operation in self._operations:
            if not reached.isdisjoint(operation.inputs):
                reached.update(operation.outputs)
        return reached

    def _backward(
        self, operation: Operation, given: Mapping[int, Any], *, again: bool
    ) -> Sequence[Any]:
        backward = operation.backward
        if again:
            _, backward, _ = jax.vjp(operation.function, *operation.operands, has_aux=True)
        gradients = [
            jnp.zeros_like(self._values[key]) if gradient is None else gradient
            for key, gradient in given.items()
        ]
        return backward(gradients)


def _add(gradients: dict[int, Any], key: int, gradient: Any) -> None:
    known = gradients.get(key)
    gradients[key] = gradient if known is None else lax.add(known, gradient)

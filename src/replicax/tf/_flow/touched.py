"""The variables that the functions of control flow read and write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._keras import _compat
from replicax._program.capture import CaptureScope


@final
class Touched:
    """The variables that functions read and write."""

    def __init__(self) -> None:
        self.read: dict[int, Any] = {}
        self.written: dict[int, Any] = {}

    def by(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Note what a function touches; the shapes of what it returns."""
        with CaptureScope(finds=True, is_branch=True) as scope:
            shape = jax.eval_shape(lambda *given: arrays_of(fn(*given)), *args)
        self.written |= scope.writes
        self.read |= scope.reads
        return shape

    @property
    def _others(self) -> list[Any]:
        return [v for key, v in self.read.items() if key not in self.written]

    def values(self) -> tuple[list[Any], list[Any]]:
        """The values of those that are written, and of the others."""
        written = [_compat.read(variable) for variable in self.written.values()]
        return written, [_compat.read(variable) for variable in self._others]

    def enter(
        self, written: Sequence[Any], others: Sequence[Any], fn: Callable[..., Any], *args: Any
    ) -> tuple[Any, list[Any]]:
        """Call a function with these values of variables; its result, and their new values."""
        mine = list(self.written.values())
        with CaptureScope(is_branch=True) as scope:
            scope.bind(zip([*mine, *self._others], [*written, *others], strict=True))
            result = arrays_of(fn(*args))
            news = [scope.get_current_value(variable) for variable in mine]
        return result, news

    def assign(self, news: Sequence[Any]) -> None:
        """Give the written ones their new values."""
        for variable, new in zip(self.written.values(), news, strict=True):
            variable.assign(new)


def in_scope(build: Callable[[], Any]) -> Any:
    """Run in a scope that takes writes: the one around, or one that writes them at its end."""
    if _compat.get_stateless_scope() is not None:
        return build()
    for _ in range(2):
        before = _compat.pending_variables()
        with CaptureScope() as scope:
            result = build()
            created = _compat.pending_variables() - before
        if not created:
            break  # else once more, with the variables that are there now
    for variable, new in scope.updates():
        variable.assign(new)
    return result


def value_of(value: Any) -> Any:
    """A number of the host, or an array, from whatever holds it."""
    value = _compat.read(value) if isinstance(value, _compat.KerasVariable) else value
    return value if isinstance(value, Tracer) else np.asarray(value)


def arrays_of(nest: Any) -> Any:
    """A nest with arrays for its numbers and variables."""

    def one(leaf: Any) -> Any:
        is_variable = isinstance(leaf, _compat.KerasVariable)
        return jnp.asarray(leaf.value if is_variable else leaf)

    return jax.tree.map(one, nest)

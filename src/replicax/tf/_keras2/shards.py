"""`layer.weights` with the shards of variables that parameter servers divide, as TensorFlow has it.

`spellings.py` puts it in. What reads or writes values still sees whole variables.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from replicax._core import seams
from replicax._ps.variables.server_variable import ShardedVariable

_whole = ContextVar("whole", default=False)


def with_shards(weights: property) -> property:
    """The property `weights`: in place of a sharded variable, its shards."""

    def found(self: Any) -> list[Any]:
        """The variables of a layer or model; of a divided one, its shards."""
        wants_whole = _whole.get() or not seams.speaks_tensorflow
        with _of_whole_variables():
            variables = weights.__get__(self)
        return variables if wants_whole else [part for v in variables for part in _parts(v)]

    return property(found)


def whole(method: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    """Call a method that works on whole variables."""
    with _of_whole_variables():
        return method(*args, **options)


def whole_property(found: property) -> property:
    """A property that is a list of whole variables."""
    return property(functools.partial(whole, found.__get__))


@contextlib.contextmanager
def _of_whole_variables() -> Iterator[None]:
    token = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(token)


def _parts(variable: Any) -> list[Any]:
    return list(variable.variables) if isinstance(variable, ShardedVariable) else [variable]

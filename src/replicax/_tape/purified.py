"""A function that uses variables, called through a JAX transformation that must not see them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from replicax._keras import _compat
from replicax._keras.capture import CaptureScope


@final
class Purified:
    """A function of arrays whose variables are arguments, and whose assignments are results.

    Args:
        call: The function, of a list of arrays. It may read and assign variables.
    """

    def __init__(self, call: Callable[[Sequence[Any]], Any]) -> None:
        self.variables: list[Any] = []
        self._call = call
        self._written: list[Any] = []
        self._missing: list[Any] = []

    def __call__(self, values: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The function's result, and the new values of the variables that it assigned."""
        with self.lent(values) as scope:
            try:
                result = self._call(arrays)
            finally:
                self._missing = list(scope.reads.values())
        updates = scope.updates()
        self._written = [variable for variable, _ in updates]
        return result, [new for _, new in updates]

    @contextlib.contextmanager
    def lent(self, values: Sequence[Any]) -> Iterator[CaptureScope]:
        """Let the variables have these values in a `with` block."""
        with CaptureScope(finds=True) as scope:
            scope.lend(zip(self.variables, values, strict=True))
            yield scope

    @property
    def is_complete(self) -> bool:
        """Whether the last call read no variable that is not yet an argument."""
        return not self._missing

    def run(
        self,
        transformed: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Sequence[Any]]],
        arrays: Sequence[Any],
    ) -> Any:
        """Call the transformed function, once more if it was not known what it reads.

        Args:
            transformed: Made of this object, with the same arguments and results.
            arrays: The function's arguments.
        """
        while True:
            values = [_compat.read(variable) for variable in self.variables]
            try:
                result, news = transformed(values, arrays)
            except Exception:
                # Maybe because a variable that is no argument yet is a tracer of JAX' own.
                if self.is_complete:
                    raise
            else:
                if self.is_complete:
                    break
            self.variables += self._missing
        for variable, new in zip(self._written, news, strict=True):
            variable.assign(new)
        return result

"""Values for what is not built yet: they are put in when it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from replicax._keras import _compat
from replicax.train._parts import Variables, assign, finish, matched, put

if TYPE_CHECKING:
    import numpy as np


def is_to_wait(part: Variables, entries: Sequence[dict[str, Any]]) -> bool:
    """Whether a part has fewer variables than were saved, and may get more when it is built."""
    return len(part.variables) < len(entries) and bool(_compat.unbuilt(part.owner))


@final
class Waiting:
    """The values of a model, layer or optimizer that has not all of its variables yet.

    Args:
        part: What they are for.
        entries: What was saved of each variable.
        arrays: The values, by name.
    """

    def __init__(
        self,
        part: Variables,
        entries: Sequence[dict[str, Any]],
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        self.part = part
        self.done = False
        self._entries, self._arrays = entries, arrays
        for owner in _compat.unbuilt(part.owner):
            _compat.after_build(owner, self._fill)
        if isinstance(part.owner, _compat.BaseOptimizer):
            # Its first variables are there from the start: how many steps it made, and its rate.
            for index, variable in enumerate(part.variables):
                assign(variable, arrays, f"{part.name}:{index}")

    def _fill(self) -> None:
        """Put the values in, if all variables are there."""
        variables = self.part.variables
        if self.done or len(variables) < len(self._entries):
            return
        self.done = True
        found = matched(self.part.name, self._entries, variables)
        for variable, index in zip(variables, found, strict=True):
            put(variable, self._arrays, f"{self.part.name}:{index}")
        finish(self.part.owner)
        self._arrays = {}

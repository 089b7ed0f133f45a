"""Values for what is not built yet: they are put in when it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

from replicax._keras import _compat
from replicax._keras.attributes import finish
from replicax.train._parts import Variables, assign, put

if TYPE_CHECKING:
    import numpy as np

    from replicax.train._saved import Saved


def is_to_wait(part: Variables, saved: Saved) -> bool:
    """Whether a part has fewer variables than were saved, and may get more when it is built."""
    return len(part.variables) < len(saved.entries) and bool(_compat.unbuilt(part.owner))


@final
class Waiting:
    """The values of a model, layer or optimizer that has not all of its variables yet."""

    def __init__(
        self,
        part: Variables,
        saved: Saved,
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        self.part = part
        self.done = False
        self._saved, self._arrays = saved, arrays
        for owner in _compat.unbuilt(part.owner):
            _compat.after_build(owner, self._fill)
        if isinstance(part.owner, _compat.BaseOptimizer):
            # Its first variables are there from the start: how many steps it made, and its rate.
            for variable, key in zip(part.variables, saved.keys, strict=False):
                assign(variable, arrays, key)

    def _fill(self) -> None:
        """Put the values in, if all variables are there."""
        if self.done or len(self.part.variables) < len(self._saved.entries):
            return
        self.done = True
        for variable, key in self._saved.matched(self.part):
            put(variable, self._arrays, key)
        finish(self.part.owner)
        self._arrays = {}

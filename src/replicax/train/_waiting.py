"""Values for objects that are not built yet: they are assigned once they are."""

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
    """Whether a part has fewer variables than were saved, and may get more when built."""
    return len(part.variables) < len(saved.entries) and bool(_compat.unbuilt(part.owner))


@final
class Waiting:
    """The values of a model, layer or optimizer that does not have all its variables yet."""

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
            # An optimizer has its first variables from the start: iterations and learning rate.
            for variable, key in zip(part.variables, saved.keys, strict=False):
                assign(variable, arrays, key)

    def _fill(self) -> None:
        """Assign the values if all variables exist."""
        if self.done or len(self.part.variables) < len(self._saved.entries):
            return
        self.done = True
        for variable, key in self._saved.matched(self.part):
            put(variable, self._arrays, key)
        finish(self.part.owner)
        self._arrays = {}

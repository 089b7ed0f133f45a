"""The cells of a server: each is a variable or a shard of one, with its slots and its version.

A table whose rows have ids instead of numbers is a `DynamicCell`, in `dynamic_cell.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._ps.tables.row_capture import RowCapture
from replicax._ps.tables.row_store import grown, put_rows, take_rows
from replicax._ps.tables.table import BLOCK_ELEMENTS

if TYPE_CHECKING:
    from replicax._ps.tables.table import Apply
    from replicax._ps.variables.shard_optimizer import Part

_CHANGES = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
}


@final
@dataclass
class Cell:
    """A variable, or a shard of one.

    A value that is trained by rows is changed in place. Any other value is replaced, so that a
    reader may keep using the old one.
    """

    part: Part
    value: Any
    version: int = 0  # how often it was changed
    slots: list[Any] = field(default_factory=list)
    optimizer: int | None = None  # whose slots these are; None before the first
    replaced: int = 0  # how often it or a slot was replaced as a whole
    changed: np.ndarray | None = None  # rows since somebody asked
    captures: list[RowCapture] = field(default_factory=list)  # told before rows change

    @property
    def is_in_place(self) -> bool:
        """Whether the value and all slots are changed in place, by rows."""
        rows = self.part.shape[:1]
        return _is_own(self.value) and all(np.shape(slot)[:1] == rows for slot in self.slots)

    def get(self, slot: int | None = None) -> Any:
        """The value, or one of the slots, as it is now."""
        held = self.value if slot is None else self.slots[slot]
        return held.copy() if _is_own(held) else held

    def put(self, new: Any, kind: str = "set", slot: int | None = None) -> None:
        """Replace the value or a slot by a value, or add to it."""
        if kind == "add":
            new = np.asarray(self.get(slot)) + new
        if slot is None:
            self.value = new
        else:
            self.slots[slot] = new
        self.version += 1
        self.replaced += 1

    def step(self, value: Any, slots: list[Any]) -> None:
        """Take an optimizer's new value and slots."""
        self.value, self.slots = value, slots
        self.version += 1
        self.replaced += 1

    def attach(self, optimizer: int, slots: list[Any], *, decays: bool) -> None:
        """Take an optimizer and its slots."""
        self.part = self.part._replace(decays=decays)
        self.optimizer, self.slots = optimizer, slots
        self.replaced += 1

    def capture(self, rows: np.ndarray | None = None) -> RowCapture:
        """Keep rows as they are now for a later copy; None for all rows."""
        wanted = np.ones(self.part.shape[0], bool) if rows is None else rows
        capture = RowCapture([self.value, *self.slots], wanted)
        self.captures.append(capture)
        return capture

    def rows(self, rows: np.ndarray, *, training: bool = False) -> np.ndarray:
        """Some rows of the value, by number."""
        return take_rows(np.asarray(self.value), rows)

    def scatter(self, rows: np.ndarray, values: np.ndarray, how: str) -> None:
        """Change rows by number, in place; a row that is named twice is changed twice."""
        value = self._own(None)
        self._note(rows)
        if how == "update":
            value[rows] = values
        else:
            _CHANGES[how].at(value, rows, values)
        self.version += 1

    def step_rows(self, rows: np.ndarray, grads: np.ndarray, hosted: Any, scale: float) -> None:
        """Let an optimizer update some rows, each of them named once."""
        self._note(rows)
        held = [self._own(slot) for slot in (None, *range(len(self.slots)))]
        update, rowwise = hosted.of_rows(self.part, scale)
        step = BLOCK_ELEMENTS // max(1, prod(self.part.shape[1:])) if rowwise else len(rows)
        for start in range(0, len(rows), max(1, step)):
            block = slice(start, start + max(1, step))
            self._step_block(rows[block], grads[block], held, update, hosted.iterations, rowwise)
        self.version += 1

    def _step_block(
        self,
        rows: np.ndarray,
        grads: np.ndarray,
        held: list[np.ndarray],
        update: Apply,
        iterations: int,
        rowwise: bool,
    ) -> None:
        # Few sizes, because each is compiled.
        room = 0 if rowwise else 1 << (len(rows) - 1).bit_length()
        # State that an optimizer has once, and not for each row, is passed whole.
        by_row = [array.shape[:1] == held[0].shape[:1] for array in held]
        value, *slots = [
            take_rows(array, rows, room) if has_rows else array
            for array, has_rows in zip(held, by_row, strict=True)
        ]
        value, slots = update(value, grown(grads, room), slots, iterations)
        for array, changed, has_rows in zip(held, [value, *slots], by_row, strict=True):
            if has_rows:
                put_rows(array, rows, np.asarray(changed)[: len(rows)])
            else:
                array[...] = changed

    def _note(self, rows: np.ndarray) -> None:
        """Note that these rows are about to change."""
        for capture in self.captures:
            capture.save(rows)
        if self.changed is None:
            self.changed = np.zeros(self.part.shape[0], bool)
        self.changed[rows] = True

    def _own(self, slot: int | None) -> np.ndarray:
        """The value or a slot as an array that may be changed in place."""
        now = self.value if slot is None else self.slots[slot]
        if not _is_own(now):
            now = np.array(now)
            if slot is None:
                self.value = now
            else:
                self.slots[slot] = now
        return now


def _is_own(held: Any) -> bool:
    """Whether an array is changed in place by `step_rows`; all others never change."""
    return isinstance(held, np.ndarray) and held.flags.owndata

"""The cells of a server, each a variable or a shard of one, and the optimizers that update them.

A table whose rows have ids instead of numbers is a `DynamicCell`, in `dynamic_table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._core.errors import ClusterError
from replicax._ps.variables.shard_optimizer import (
    RowwiseOptimizer,
    ShardOptimizer,
    rowwise_optimizer,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from replicax._ps.variables.shard_optimizer import Part, Recipe

# Elements per block of a row-wise optimizer, so that a block stays in the cache.
BLOCK_ELEMENTS = 1 << 16
_LEAST_ROOM = 16  # rows that a compiled optimizer is given at least

_CHANGES = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
}

# Copied in a fraction of a millisecond, for which the table is locked.
BLOCK_BYTES = 1 << 20

Chunk = tuple[np.ndarray, list[np.ndarray]]


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
        self.part = self.part._replace(decays=decays)
        self.optimizer, self.slots = optimizer, slots
        self.replaced += 1

    def capture(self) -> RowCapture:
        """Keep all rows as they are now for a later copy."""
        self.captures.append(RowCapture([self.value, *self.slots]))
        return self.captures[-1]

    def rows(self, rows: np.ndarray, *, training: bool = False) -> np.ndarray:
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
        update_rows(held, rows, grads, hosted, self.part, scale)
        self.version += 1

    def _note(self, rows: np.ndarray) -> None:
        """Note that these rows are about to change."""
        for capture in self.captures:
            capture.save(rows)

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


def update_rows(
    held: Sequence[np.ndarray],
    rows: np.ndarray,
    grads: np.ndarray,
    hosted: Hosted,
    part: Part,
    scale: float,
) -> None:
    """Let an optimizer update some rows of a value and its slots in place, each row named once.

    If each row's result depends on that row alone, it is given rows block by block. Else it is
    given a power of two of rows, so that it is compiled for few shapes; behind the real ones are
    zeros, whose results are dropped.
    """
    if len(rows) != len(grads):
        raise ValueError(f"{len(rows)} rows with {len(grads)} gradients")
    rowwise, rate = hosted.rowwise(part), hosted.learning_rate
    size = BLOCK_ELEMENTS // max(1, prod(part.shape[1:])) if rowwise else len(rows)
    # State that an optimizer has once, and not for each row, is passed whole.
    by_row = [array.shape[:1] == held[0].shape[:1] for array in held]
    for start in range(0, len(rows), max(1, size)):
        block = slice(start, start + max(1, size))
        some, gradients = rows[block], grads[block]
        room = 0 if rowwise else max(_LEAST_ROOM, 1 << (len(some) - 1).bit_length())
        value, *slots = [
            take_rows(array, some, room) if has_rows else array
            for array, has_rows in zip(held, by_row, strict=True)
        ]
        if rowwise is not None and rate is not None:
            if scale != 1.0:
                gradients = gradients * np.asarray(scale, gradients.dtype)
            rowwise(value, gradients, slots, hosted.iterations, rate)
        else:
            value, slots = hosted.updated(part, value, grown(gradients, room), slots, scale)
        for array, changed, has_rows in zip(held, [value, *slots], by_row, strict=True):
            if has_rows:
                put_rows(array, some, np.asarray(changed)[: len(some)])
            else:
                array[...] = changed


def take_rows(array: np.ndarray, rows: np.ndarray, room: int = 0) -> np.ndarray:
    """Copy rows, followed by zeros if there is `room` for more."""
    out = np.empty((max(room, len(rows)), *array.shape[1:]), array.dtype)
    # `clip` spares a buffer and a check of the indices, which were checked before.
    array.take(rows, axis=0, out=out[: len(rows)], mode="clip")
    out[len(rows) :] = 0
    return out


def put_rows(array: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Write rows, each once."""
    if not array.size:
        return
    values = np.ascontiguousarray(values, array.dtype)
    # Each row as one item of raw bytes, so that NumPy copies rows and not elements.
    _items(array)[rows] = _items(values)


def grown(array: np.ndarray, rows: int, zeros: Callable[..., np.ndarray] = np.zeros) -> np.ndarray:
    """An array with at least this many rows, the new ones zeros."""
    if rows <= len(array):
        return array
    longer = zeros((rows, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


def _items(array: np.ndarray) -> np.ndarray:
    width = prod(array.shape[1:])
    return array.reshape(len(array), width).view(f"V{array.itemsize * width}").reshape(len(array))


class OtherOptimizer(ClusterError):
    """Raised for gradients of an optimizer that another one has replaced."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"Cannot apply gradients to '{path}': another optimizer has replaced the one they were "
            "made for, and its state is gone. Train each variable with one optimizer."
        )


@dataclass
class Hosted:
    """An optimizer on a server: its steps are counted for all values at once.

    The learning rate is the current one; None for a schedule.
    """

    recipe: Recipe
    updates: ShardOptimizer
    iterations: int
    learning_rate: float | None

    @classmethod
    def of(cls, recipe: Recipe, iterations: int, rate: float | None) -> Hosted:
        """An optimizer without updates here so far."""
        return cls(recipe, ShardOptimizer(recipe), iterations, rate)

    def rowwise(self, part: Part) -> RowwiseOptimizer | None:
        """The optimizer that updates rows of a cell in NumPy; None if these settings have none."""
        recipe = self.recipe
        # A user's subclass may have the name of one of Keras' own.
        is_own = recipe.kind.__module__.startswith("keras.")
        if self.learning_rate is None or part.constraint is not None or not is_own:
            return None
        return rowwise_optimizer(recipe.kind.__name__, recipe.config, part.dtype)

    def updated(
        self, part: Part, value: Any, gradients: Any, slots: Sequence[Any], scale: float
    ) -> tuple[Any, Sequence[Any]]:
        """The new values of some rows of a cell, and their new slots, by compiled code."""
        some, rate = part._replace(shape=tuple(value.shape)), self.learning_rate
        (new,), (news,) = self.updates.update(
            [some], [value], [gradients], [slots], self.iterations, rate, scale
        )
        return new, news

    def step(self, cells: Sequence[Cell], grads: Sequence[Any], scale: float) -> None:
        """Update whole cells; it does not count as a step yet."""
        if not cells:
            return
        values, slots = self.updates.update(
            [cell.part for cell in cells],
            [cell.value for cell in cells],
            grads,
            [cell.slots for cell in cells],
            self.iterations,
            self.learning_rate,
            scale,
        )
        for cell, value, held in zip(cells, values, slots, strict=True):
            cell.step(value, held)

    def prepare(self, cells: Sequence[Cell]) -> None:
        """Compile what `step` needs for these cells."""
        with suppress(Exception):  # the first step will raise the same error
            self.updates.prepare([cell.part for cell in cells], self.learning_rate)


@final
class RowCapture:
    """The rows of a table's values and slots, as they are at its creation."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays = [np.asarray(array) for array in arrays]
        self._wanted = np.ones(len(self.arrays[0]), bool)
        self._saved: list[Chunk] = []

    def save(self, rows: np.ndarray) -> None:
        """Copy rows that are about to change. The table is locked."""
        mine = rows[self._wanted[rows]]
        if len(mine):
            self._take(mine)

    def chunks(self, lock: AbstractContextManager[Any]) -> Iterator[Chunk]:
        """The rows and their contents in each array, in any order; each row once.

        `lock` is the table's lock.
        """
        row_bytes = sum(array.nbytes // max(1, len(array)) for array in self.arrays)
        block = max(1, BLOCK_BYTES // max(1, row_bytes))
        gathered: list[Chunk] = []
        for start in range(0, len(self._wanted), block):
            with lock:
                mine = start + np.flatnonzero(self._wanted[start : start + block])
                if len(mine):
                    self._take(mine)
                saved, self._saved = self._saved, []
            gathered += saved
            if sum(len(rows) for rows, _ in gathered) >= block:
                yield _joined(gathered)
                gathered = []
        if gathered:
            yield _joined(gathered)

    def _take(self, rows: np.ndarray) -> None:
        self._saved.append((rows, [array[rows] for array in self.arrays]))
        self._wanted[rows] = False


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    columns = zip(*(arrays for _, arrays in chunks), strict=True)
    rows = np.concatenate([rows for rows, _ in chunks])
    return rows, [np.concatenate(column) for column in columns]

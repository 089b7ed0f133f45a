"""Optimizers on a server, and their steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from replicax._core.errors import ClusterError
from replicax._ps.buffers import array_of
from replicax._ps.tables.rowwise import RowwiseOptimizer, rowwise_optimizer
from replicax._ps.variables.shard_optimizer import ShardOptimizer

if TYPE_CHECKING:
    from replicax._ps.server.cells import Cell
    from replicax._ps.tables.table import Apply
    from replicax._ps.variables.shard_optimizer import Part, Recipe


class OtherOptimizer(ClusterError):
    """Raised for gradients of an optimizer that another one has replaced."""

    def __init__(self, path: str) -> None:
        super().__init__(
            "A variable on a parameter server is trained by one optimizer at a time. Received: "
            f"gradients of '{path}' for one that another has replaced. What the first one kept "
            "beside it is gone. Train it by one optimizer only."
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
    kind: str

    @classmethod
    def of(cls, recipe: Recipe, iterations: int, rate: float | None, kind: str = "") -> Hosted:
        """An optimizer without updates here so far; `kind` if the recipe does not know it."""
        return cls(recipe, ShardOptimizer(recipe), iterations, rate, kind or recipe.name)

    def of_rows(self, part: Part, scale: float) -> tuple[Apply, bool]:
        """What updates rows of a cell, and whether it takes any number of them: see `Table.update`.

        In NumPy where that is possible, else compiled. Gradients are multiplied by `scale`.
        """
        rowwise, rate, updates = _rowwise(self.recipe, part), self.learning_rate, self.updates
        if rowwise is not None and rate is not None:
            return _bound(rowwise, rate, scale), True

        def compiled(
            values: Any, gradients: Any, slots: Sequence[Any], step: int
        ) -> tuple[Any, Sequence[Any]]:
            some = part._replace(shape=tuple(values.shape))
            grads = [gradients]
            (new,), (news,) = updates.update([some], [values], grads, [slots], step, rate, scale)
            return new, news

        return compiled, False


def _rowwise(recipe: Recipe, part: Part) -> RowwiseOptimizer | None:
    # A user's subclass may have the name of one of Keras' own.
    if part.constraint is not None or not recipe.kind.__module__.startswith("keras."):
        return None
    return rowwise_optimizer(recipe.kind.__name__, recipe.config, part.dtype)


def _bound(rowwise: RowwiseOptimizer, rate: float, scale: float) -> Apply:
    def apply(
        values: Any, gradients: Any, slots: Sequence[Any], step: int
    ) -> tuple[Any, Sequence[Any]]:
        scaled = gradients if scale == 1.0 else gradients * np.asarray(scale, gradients.dtype)
        return rowwise(values, scaled, slots, step, rate)

    return apply


def step(hosted: Hosted, cells: list[Cell], grads: list[Any], scale: float) -> None:
    if not cells:
        return
    values, slots = hosted.updates.update(
        [cell.part for cell in cells],
        [cell.value for cell in cells],
        grads,
        [cell.slots for cell in cells],
        hosted.iterations,
        hosted.learning_rate,
        scale,
    )
    for cell, value, held in zip(cells, values, slots, strict=True):
        cell.step(value, held)


def prepare(hosted: Hosted, cells: list[Cell]) -> None:
    """Compile what `step` needs for these cells."""
    with suppress(Exception):  # the first step will raise the same error
        hosted.updates.prepare([cell.part for cell in cells], hosted.learning_rate)


def step_rows(hosted: Hosted, cell: Cell, rows: Any, buffer: Any, scale: float) -> None:
    if not len(rows):
        return
    grads = array_of(buffer, cell.part.dtype, (len(rows), *cell.part.shape[1:]))
    cell.step_rows(rows, grads, hosted, scale)

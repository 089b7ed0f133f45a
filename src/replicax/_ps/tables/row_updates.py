"""What runs an optimizer on some rows of a table: in NumPy where it can, compiled where it must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from replicax._ps.tables.rowwise import RowwiseOptimizer, rowwise_optimizer

if TYPE_CHECKING:
    from replicax._ps.tables.table import Apply
    from replicax._ps.variables.shard_optimizer import Part, Recipe, ShardOptimizer


def row_update(
    recipe: Recipe, updates: ShardOptimizer, part: Part, rate: float | None, scale: float
) -> tuple[Apply, bool]:
    """Choose how rows of a value are updated.

    The rate is None for a schedule; gradients are multiplied by `scale`. Gives what updates rows,
    and whether it takes any number of them (see `Table.update`).
    """
    rowwise = _rowwise(recipe, part)
    if rowwise is not None and rate is not None:
        return _bound(rowwise, rate, scale), True

    def compiled(
        values: Any, gradients: Any, slots: Sequence[Any], step: int
    ) -> tuple[Any, Sequence[Any]]:
        some = part._replace(shape=tuple(values.shape))
        (new,), (news,) = updates.update([some], [values], [gradients], [slots], step, rate, scale)
        return new, news

    return compiled, False


def _rowwise(recipe: Recipe, part: Part) -> RowwiseOptimizer | None:
    # A subclass of the user's may have the name of one of Keras' own.
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

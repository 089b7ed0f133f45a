"""The gradient of a table as the rows it has, and what belongs to one row of the table summed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from replicax._cpu.tables import Firsts, add_sums, is_for_kernel, sums_where_first
from replicax._program.columns import Columns, made, shape_of
from replicax._program.jaxpr import bind


@dataclass
class Rows:
    """A sum of rows, each added to zeros where its index says.

    Args:
        scatter: The operation that makes the whole of it.
        zeros: What the rows are added to.
        indices: Where each row belongs.
        updates: The rows, or the columns of an array that they are.
        firsts: Of the indices; the same for all that have these.
        whole: All of it, once that was asked for.
        factor: What each row is still to be multiplied with.
        by_kernel: Whether there is a kernel that adds rows to tables, and each device has these.
    """

    scatter: Any
    zeros: Any
    indices: Any
    updates: Any
    firsts: Firsts
    whole: Any = None
    factor: Any = None
    by_kernel: bool = False

    @property
    def may_repeat(self) -> bool:
        return not self.scatter.params["unique_indices"]

    @property
    def is_for_kernel(self) -> bool:
        """Whether a kernel makes the sums and adds them; it needs no first rows for that."""
        arrays = self.zeros, self.indices, shape_of(self.updates)
        return self.may_repeat and self.by_kernel and is_for_kernel(*arrays)

    @property
    def lacks_firsts(self) -> bool:
        return self.may_repeat and self.firsts.places is None and not self.is_for_kernel

    def made(self) -> Rows:
        """The same, the rows as an array of their own, with nothing that is to be multiplied."""
        rows = made(self.updates)
        return replace(
            self, updates=rows if self.factor is None else rows * self.factor, factor=None
        )

    def changed(self, how: Callable[[Any], Any]) -> Rows:
        rows = self.made()
        return replace(rows, updates=how(rows.updates), whole=None)

    def times(self, factor: Any) -> Rows:
        """The rows times a number: the kernel that adds them does that, too."""
        if self.factor is None and self.is_for_kernel:
            return replace(self, factor=factor, whole=None)
        return self.changed(lambda updates: updates * factor)

    def made_whole(self) -> Any:
        return bind(self.scatter, [self.zeros, self.indices, self.made().updates])[0]

    def added_to(self, table: Any, sign: Callable[[Any], Any]) -> Any:
        if not self.is_for_kernel:
            rows = self.made().updates
            sums = sums_where_first(rows, self.firsts) if self.may_repeat else rows
            return bind(self.scatter, [table, self.indices, sign(sums)])[0]
        if isinstance(self.updates, Columns) and self.zeros.ndim == 2:
            rows, column = self.updates.whole, self.updates.first
        else:
            rows, column = made(self.updates), 0
        factor, subtracts = 1 if self.factor is None else self.factor, sign is operator.neg
        return add_sums(table, self.indices, rows, factor, column=column, subtracts=subtracts)

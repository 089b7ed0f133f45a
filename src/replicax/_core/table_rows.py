"""The gradient of a table as the rows it has, and what belongs to one row of the table summed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from replicax._core.first_rows import Firsts, sums_where_first
from replicax._core.partial_sums import bound
from replicax._core.table_kernel.operation import add_sums, may_add


@dataclass
class Rows:
    """A sum of rows, each added to zeros where its index says.

    Args:
        scatter: The operation that makes the whole of it.
        zeros: What the rows are added to.
        indices: Where each row belongs.
        updates: The rows.
        firsts: Of the indices; the same for all that have these.
        whole: All of it, once that was asked for.
        factor: What each row is still to be multiplied with.
    """

    scatter: Any
    zeros: Any
    indices: Any
    updates: Any
    firsts: Firsts
    whole: Any = None
    factor: Any = None

    @property
    def may_repeat(self) -> bool:
        return not self.scatter.params["unique_indices"]

    @property
    def is_for_kernel(self) -> bool:
        """Whether a kernel makes the sums and adds them; it needs no first rows for that."""
        return self.may_repeat and may_add(self.zeros, self.indices, self.updates)

    def multiplied(self) -> Rows:
        """The same, with nothing that is still to be multiplied."""
        if self.factor is None:
            return self
        return replace(self, updates=self.updates * self.factor, factor=None)

    def times(self, factor: Any) -> Rows:
        """The rows times a number; the kernel that adds them multiplies them, too."""
        rows = replace(self.multiplied(), factor=factor, whole=None)
        return rows if self.is_for_kernel else rows.multiplied()

    def made_whole(self) -> Any:
        return bound(self.scatter, [self.zeros, self.indices, self.multiplied().updates])[0]

    def added_to(self, table: Any, sign: Callable[[Any], Any]) -> Any:
        if self.is_for_kernel:
            factor, subtracts = 1 if self.factor is None else self.factor, sign is operator.neg
            return add_sums(table, self.indices, self.updates, factor, subtracts=subtracts)
        sums = sums_where_first(self.updates, self.firsts) if self.may_repeat else self.updates
        return bound(self.scatter, [table, self.indices, sign(sums)])[0]

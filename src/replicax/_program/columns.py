"""Columns of an array that was parted, made when somebody needs them as an array of their own.

The gradient of tables whose rows were put side by side is parted so: a kernel that adds the rows to
a table reads them where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from replicax._program.jaxpr import bind, named


@dataclass
class Columns:
    """One result of an operation that parts the columns of an array.

    `results` are all of them, once one was asked for; the same list for all.
    """

    equation: Any
    whole: Any
    number: int
    results: list[Any]

    @property
    def aval(self) -> Any:
        return self.equation.outvars[self.number].aval

    @property
    def first(self) -> int:
        """The column that they begin with."""
        return sum(self.equation.params["sizes"][: self.number])

    def made(self) -> Any:
        if not self.results:
            with named(self.equation):
                self.results.extend(bind(self.equation, [self.whole]))
        return self.results[self.number]


def parted(equation: Any, operands: Sequence[Any]) -> list[Any] | None:
    """The results of an operation, if these are columns of an array."""
    is_split = equation.primitive is lax.split_p
    if not is_split or equation.params["axis"] != equation.invars[0].aval.ndim - 1:
        return None
    results: list[Any] = []
    return [Columns(equation, made(operands[0]), n, results) for n in range(len(equation.outvars))]


def made(value: Any) -> Any:
    """A value, as an array if it is columns of one."""
    return value.made() if isinstance(value, Columns) else value


def shape_of(value: Any) -> Any:
    """Shape and type of a value."""
    return value.aval if isinstance(value, Columns) else jax.typeof(value)

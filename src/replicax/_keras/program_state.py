"""The variables of a program: their values for a call, and the new ones after it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import jax

from replicax._keras import _compat
from replicax._keras.ownership import donatable, note_made
from replicax._program.central import CentralProgram, may_fail, tells_python

if TYPE_CHECKING:
    from replicax._keras.capture import Captured


@final
class ProgramState:
    """The variables that a program reads and writes.

    What is the same in each call is found out once: a step of few milliseconds may have hundreds.

    Args:
        captured: The program.
        donates: Whether it may take over the memory of the values that it replaces, unless it
            calls Python: that may raise, and the variables must have their values then.
    """

    def __init__(self, captured: Captured, *, donates: bool) -> None:
        is_written = set(captured.written)
        self._order = [i in is_written for i in range(len(captured.variables))]
        self.written = [captured.variables[i] for i in captured.written]
        self.others = [v for i, v in enumerate(captured.variables) if i not in is_written]
        self._keys = list(map(id, self.written))
        self.store, self.away = _home_of([*self.written, *self.others])
        #: Whether a call is waited for, as what it calls in Python may raise.
        self.is_checked = tells_python(captured.jaxpr)
        donates = donates and not may_fail(captured.jaxpr)
        resident = all(map(_is_resident, [*self.written, *self.others]))
        #: Which of the written ones a call uses up; a program of variables that live away says it.
        self.replaced: Sequence[int] = range(len(self.written) if donates and resident else 0)

    @property
    def donates(self) -> bool:
        """Whether a call uses up values."""
        return len(self.replaced) > 0

    def in_order(self, written: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Values of the variables, as the program takes them."""
        mine, rest = iter(written), iter(others)
        return [next(mine if is_written else rest) for is_written in self._order]

    def values(self) -> tuple[list[Any], list[Any]]:
        """The values of the variables that are written, and those of the others."""
        return _compat.read_all(self.written), _compat.read_all(self.others)

    def taken(self) -> tuple[list[Any], list[Any]]:
        """The same, for a call that uses up some of the first."""
        written, others = self.values()
        if len(self.replaced) == len(written):
            return donatable(self._keys, written), others
        olds = [written[i] for i in self.replaced]
        for i in self.replaced:
            written[i] = None  # nobody else may hold what is used up
        olds = donatable([self._keys[i] for i in self.replaced], olds)
        for i, old in zip(self.replaced, olds, strict=True):
            written[i] = old
        return written, others

    def named(self) -> list[tuple[str, Any]]:
        """The paths of the variables, with their values."""
        variables = [*self.written, *self.others]
        values = _compat.read_all(variables)
        return [(v.path, value) for v, value in zip(variables, values, strict=True)]

    def give(self, news: list[Any]) -> None:
        """Give the variables what a call on devices has made of them."""
        if self.donates:
            note_made(self._keys, news)
        _compat.write_all(self.written, news)

    def central(self, program: Any, arrays: Any, *, donates: bool, **how: Any) -> CentralProgram:
        """A program of variables that live away from the replicas.

        Args:
            program: From `(written values, other values, arrays)` to
                `(outputs, new values, token)`.
            arrays: Those of the call.
            donates: Whether it may take over the memory of the values that it replaces.
            how: How it is compiled for the replicas.
        """
        written, others = self.values()
        is_away = self.away[: len(written)]
        found = CentralProgram(
            program,
            (written, others, arrays),
            away=[*self.away, *[False] * len(jax.tree.leaves(arrays))],
            news=lambda result: list(itertools.compress(result[1], is_away)),
            store=self.store,
            donates=donates,
            **how,
        )
        self.replaced = found.replaced
        return found


def _home_of(variables: Sequence[Any]) -> tuple[Any, list[bool]]:
    """The store that is not where the replicas compute, if there is one; whose variables it has."""
    owners = [_compat.owner(variable) for variable in variables]
    stores = [owner for owner in owners if owner is not None and owner.home is not None]
    store = stores[0] if stores else None
    return store, [store is not None and owner is store for owner in owners]


def _is_resident(variable: Any) -> bool:
    store = _compat.owner(variable)
    return store is None or store.is_resident

"""The variables of a program: their values for a call, and the new ones after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from replicax._keras import _compat
from replicax._keras.ownership import donatable, note_made

if TYPE_CHECKING:
    from replicax._keras.capture import Captured


@final
class ProgramState:
    """The variables that a program reads and writes.

    What is the same in each call is found out once: a step of few milliseconds may have hundreds.

    Args:
        captured: The program.
        donates: Whether it may take over the memory of the values that it replaces.
    """

    def __init__(self, captured: Captured, *, donates: bool) -> None:
        is_written = set(captured.written)
        self._order = [i in is_written for i in range(len(captured.variables))]
        self.written = [captured.variables[i] for i in captured.written]
        self.others = [v for i, v in enumerate(captured.variables) if i not in is_written]
        self._keys = list(map(id, self.written))
        self._away = _stores_away([*self.written, *self.others])
        self.donates = donates and not self._away

    def in_order(self, written: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Values of the variables, as the program takes them."""
        mine, rest = iter(written), iter(others)
        return [next(mine if is_written else rest) for is_written in self._order]

    def values(self) -> tuple[list[Any], list[Any]]:
        """The values of the variables that are written, and those of the others."""
        return _compat.read_all(self.written), _compat.read_all(self.others)

    def lent(self) -> tuple[list[Any], list[Any]]:
        """The same, where the replicas compute."""
        written, others = self.values()
        if not self._away:
            return written, others
        moved = self._moved([*written, *others], "lend")
        return moved[: len(written)], moved[len(written) :]

    def taken(self) -> tuple[list[Any], list[Any]]:
        """The same, for a call that uses up the first."""
        written, others = self.lent()
        return donatable(self._keys, written) if self.donates else written, others

    def give(self, news: list[Any]) -> None:
        """Give the variables what a call on devices has made of them."""
        news = self._moved(news, "keep")
        if self.donates:
            note_made(self._keys, news)
        _compat.write_all(self.written, news)

    def _moved(self, values: list[Any], way: str) -> list[Any]:
        for store, places in self._away:
            places = [i for i in places if i < len(values)]
            there = getattr(store, way)([values[i] for i in places])
            for i, value in zip(places, there, strict=True):
                values[i] = value
        return values


def _stores_away(variables: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """The stores that are not where the replicas compute, with the positions of their variables."""
    places: dict[int, tuple[Any, list[int]]] = {}
    for i, variable in enumerate(variables):
        store = _compat.owner(variable)
        if store is not None and not store.is_resident:
            places.setdefault(id(store), (store, []))[1].append(i)
    return list(places.values())

"""A cache by the identity of objects; an entry is dropped when its object dies."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

T = TypeVar("T")


@final
class PerInstance(Generic[T]):
    """Makes one thing for each object, by identity, and drops it with the object."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._of: dict[int | None, T] = {}
        self._strong: list[Any] = []

    def of(self, instance: Any) -> T:
        """The entry of an object; None has one, too."""
        key = None if instance is None else id(instance)
        if key not in self._of:
            if instance is not None:
                self._drop_with(instance)
            self._of[key] = self._make()
        return self._of[key]

    def _drop_with(self, instance: Any) -> None:
        try:
            weakref.finalize(instance, self._of.pop, id(instance), None).atexit = False
        except TypeError:  # a class with slots: the object is kept, so that its id stays its own
            self._strong.append(instance)

    def all(self) -> list[T]:
        return list(self._of.values())

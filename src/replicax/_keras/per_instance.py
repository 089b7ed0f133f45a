"""A cache by the identity of objects; an entry is dropped when its object dies."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

T = TypeVar("T")


@final
class PerInstance(Generic[T]):
    """Makes one entry per object, by identity, and drops it with the object."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._of: dict[int | None, T] = {}
        self._strong: list[Any] = []

    def of(self, instance: Any) -> T:
        """The entry of an object; None has one, too."""
        key = None if instance is None else id(instance)
        if key not in self._of:
            try:
                if instance is not None:
                    weakref.finalize(instance, self._of.pop, key, None).atexit = False
            except TypeError:  # a class with slots: keep the object, so that its id is not reused
                self._strong.append(instance)
            self._of[key] = self._make()
        return self._of[key]

    def all(self) -> list[T]:
        return list(self._of.values())

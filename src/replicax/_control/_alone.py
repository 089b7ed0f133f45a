"""The channel of a worker that has no others: it agrees with itself."""

from __future__ import annotations

from typing import Any, final


@final
class Alone:
    """One worker; every question is answered at once."""

    index = 0
    size = 1
    is_chief = True

    def waited(self) -> float:
        return 0.0

    def lateness(self) -> list[float]:
        return []

    def exchange(self, name: str, value: Any) -> list[Any]:
        del name
        return [value]

    def offer(self, name: str, value: Any) -> _Kept:
        del name
        return _Kept(value)

    def any(self, name: str, holds: bool) -> bool:
        del name
        return holds

    def barrier(self, name: str) -> None:
        pass

    def bound(self, timeout: float | None) -> None:
        del timeout

    def explain(self, error: BaseException) -> None:
        del error

    def from_chief(self, name: str, payload: bytes) -> bytes:
        del name
        return payload


@final
class _Kept:
    """The `Offer` of a worker to itself."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def answers(self) -> list[Any]:
        return [self._value]

    def withdraw(self) -> None:
        pass

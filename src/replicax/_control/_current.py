"""What a channel can do, and the one that this process has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from replicax._control._offers import Offer


class Channel(Protocol):
    """A worker's line to the other workers; all of them call the same methods with the same names.

    Calls of one name are counted, so that a name may be used again; calls of different names may
    come in any order and from any thread. A worker that never comes ends all: see the watchdog.
    """

    @property
    def index(self) -> int:
        """The number of this worker, 0 ≤ index < size; the chief is 0."""
        ...

    @property
    def size(self) -> int:
        """How many workers there are."""
        ...

    @property
    def is_chief(self) -> bool:
        """Whether this worker does what is done once."""
        ...

    def waited(self) -> float:
        """For how many seconds this worker has waited for the others, in calls of these methods."""
        ...

    def lateness(self) -> list[float]:
        """For how many seconds the others have waited for each worker; only the chief knows."""
        ...

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Give a value of JSON; wait until all have; get those of all, in worker order."""
        ...

    def offer(self, name: str, value: Any) -> Offer:
        """Give a value of JSON to an exchange whose answers are needed later."""
        ...

    def any(self, name: str, holds: bool) -> bool:
        """Whether something holds on any worker."""
        ...

    def barrier(self, name: str) -> None:
        """Wait until all workers are here."""
        ...

    def bound(self, timeout: float | None) -> None:
        """Let nobody wait longer than this for the others; what the chief says counts."""
        ...

    def explain(self, error: BaseException) -> None:
        """Wait a little whether an error of the devices has its cause in another worker.

        If so, this process ends with a message that names it.
        """
        ...

    def from_chief(self, name: str, payload: bytes) -> bytes:
        """The bytes that the chief gives; what others give is ignored."""
        ...


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


_current: list[Channel] = [Alone()]


def current() -> Channel:
    """The channel of this process; without a cluster, that of a worker alone."""
    return _current[0]


def set_current(channel: Channel) -> None:
    """Make this the channel of this process."""
    _current[:] = [channel]

"""The methods of a channel, and the channel of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from replicax._control._offers import Offer


class Channel(Protocol):
    """A worker's channel to the others; all workers call the same methods with the same names.

    Calls of one name are counted, so that a name may be used again. Calls of different names may
    come in any order and from any thread. If a worker never calls, the watchdog ends all workers.
    """

    @property
    def index(self) -> int:
        """The number of this worker, 0 ≤ index < size; the chief is 0."""
        ...

    @property
    def size(self) -> int:
        """The number of workers."""
        ...

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the chief, which does work that is done once."""
        ...

    def waited(self) -> float:
        """The seconds that this worker has waited for the others, in these methods."""
        ...

    def lateness(self) -> list[float]:
        """The seconds that the others have waited for each worker; empty but on the chief."""
        ...

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Wait for the JSON values of all workers; returns them in worker order."""
        ...

    def offer(self, name: str, value: Any) -> Offer:
        """Begin an exchange of JSON values without waiting."""
        ...

    def any(self, name: str, holds: bool) -> bool:
        """Whether something holds on any worker."""
        ...

    def barrier(self, name: str) -> None:
        """Wait until all workers are here."""
        ...

    def bound(self, timeout: float | None) -> None:
        """Set the longest time, in seconds, that a worker waits; only the chief's call counts."""
        ...

    def explain(self, error: BaseException) -> None:
        """Wait some seconds for the diagnosis that another worker caused an error of the devices.

        If so, this process ends with a message that names the worker.
        """
        ...

    def from_chief(self, name: str, payload: bytes) -> bytes:
        """Send the chief's bytes to all workers; the payloads of the others are ignored."""
        ...


@final
class Alone:
    """The channel of a process without other workers, which agrees with itself."""

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

    def offer(self, name: str, value: Any) -> _OwnOffer:
        del name
        return _OwnOffer(value)

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
class _OwnOffer:
    """The `Offer` of a process without other workers."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def answers(self) -> list[Any]:
        return [self._value]

    def withdraw(self) -> None:
        pass


_current: list[Channel] = [Alone()]


def current() -> Channel:
    """The channel of this process; `Alone` without a cluster."""
    return _current[0]


def set_current(channel: Channel) -> None:
    """Make this the channel of this process."""
    _current[:] = [channel]

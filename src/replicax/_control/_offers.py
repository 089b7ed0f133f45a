"""Exchanges of a worker: all at once, or a value first, and later those of all.

What is offered early is there when it is asked for, so nobody waits for the network. Until a
worker asks it does not wait, whoever is missing: the watchdog counts from then on.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, final

from replicax._control._wire import encode, with_value
from replicax._core.errors import UsageError
from replicax._core.events import WORKERS, position, timed

if TYPE_CHECKING:
    from replicax._control._calls import Calls, Key
    from replicax._control._heartbeat import Link


class Offer(Protocol):
    """A value that was given to an exchange before the others' are needed."""

    def answers(self) -> list[Any]:
        """Wait until all have given theirs; get those of all, in worker order. Once."""
        ...

    def withdraw(self) -> None:
        """Say that nobody will ask for the answers. It may be said anywhere, at any time."""
        ...


@final
class Offers:
    """What a worker tells the hub, and asks it."""

    def __init__(self, link: Link, calls: Calls) -> None:
        self._link = link
        self._calls = calls
        self._withdrawn: deque[Key] = deque()

    def offer(self, name: str, value: Any) -> Offer:
        """Give a value of JSON to an exchange."""
        encoded = _json(name, value)
        key = self._begin(name)
        self._give(key, encoded, early=True)
        return _Offer(self, key)

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Give a value of JSON to an exchange, and wait for what all gave."""
        encoded = _json(name, value)
        key = self._begin(name)
        self._give(key, encoded, main=_is_main())
        return timed(WORKERS, self._calls.wait, key)

    def ask(self, name: str) -> Any:
        """Ask for what the chief tells, and wait for it."""
        key = self._begin(name)
        self.tell("ask", key, main=_is_main())
        return timed(WORKERS, self._calls.wait, key)

    def answers(self, key: Key) -> list[Any]:
        """Wait for what all gave to an exchange."""
        if not self._calls.is_answered(key):
            self.tell("wait", key, main=_is_main())
        return timed(WORKERS, self._calls.wait, key)

    def withdraw(self, key: Key) -> None:
        """Note that nobody will ask for the answers."""
        self._withdrawn.append(key)

    def tell(self, kind: str, key: Key, payload: bytes = b"", **more: Any) -> None:
        """Tell the hub something of a call."""
        self._link.send(encode(_header(kind, key, **more)), payload)

    def _give(self, key: Key, value: bytes, **how: bool) -> None:
        self._link.send(with_value(_header("give", key, **how), value))

    def _begin(self, name: str) -> Key:
        # Garbage is collected in the midst of anything: what that withdraws is told here.
        while self._withdrawn:
            key = self._withdrawn.popleft()
            self._calls.forget(key)
            self.tell("withdraw", key)
        return self._calls.begin(name)


def _header(kind: str, key: Key, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "name": key[0], "number": key[1], "at": position(), **more}


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@final
class _Offer:
    def __init__(self, offers: Offers, key: Key) -> None:
        self._offers, self._key = offers, key

    def answers(self) -> list[Any]:
        return self._offers.answers(self._key)

    def withdraw(self) -> None:
        self._offers.withdraw(self._key)


def _json(name: str, value: Any) -> bytes:
    """Encode a value before its call has a number, which a refused call must not use up."""
    try:
        return encode(value)
    except (TypeError, ValueError) as error:
        raise UsageError(
            "Workers exchange values of JSON. "
            f"Received: {value!r} for {name!r}. What travels between machines must not be "
            "code. Make it of None, bool, int, float, str, list and dict."
        ) from error

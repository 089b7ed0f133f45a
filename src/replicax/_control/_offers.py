"""Exchanges of a worker, in one call or in two: offer a value early, get all values later.

Answers to an early offer have usually arrived when they are needed, so nobody waits for the
network. The watchdog counts a worker as waiting only from the moment it asks for the answers.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, final

from replicax._core.errors import UsageError
from replicax._core.events import WORKERS, position, timed
from replicax._net import encode

if TYPE_CHECKING:
    from replicax._control._calls import Calls, Key
    from replicax._control._heartbeat import Link


class Offer(Protocol):
    """An exchange that has begun, and whose answers are needed later."""

    def answers(self) -> list[Any]:
        """Wait for the values of all workers, in worker order; may be called once."""
        ...

    def withdraw(self) -> None:
        """Drop the answers; may be called in any thread, at any time."""
        ...


@final
class Offers:
    """A worker's side of exchanges with the hub."""

    def __init__(self, link: Link, calls: Calls) -> None:
        self._link = link
        self._calls = calls
        self._withdrawn: deque[Key] = deque()

    def offer(self, name: str, value: Any) -> Offer:
        """Begin an exchange with a JSON value."""
        encoded = _json(name, value)
        key = self._begin(name)
        self.tell("give", key, encoded, early=True)
        return _Offer(self, key)

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Exchange a JSON value, and wait for the values of all workers."""
        encoded = _json(name, value)
        key = self._begin(name)
        self.tell("give", key, encoded, main=_is_main())
        return timed(WORKERS, self._calls.wait, key)

    def ask(self, name: str) -> Any:
        """Wait for the chief's bytes."""
        key = self._begin(name)
        self.tell("ask", key, main=_is_main())
        return timed(WORKERS, self._calls.wait, key)

    def answers(self, key: Key) -> list[Any]:
        """Wait for the values of all workers."""
        if not self._calls.is_answered(key):
            self.tell("wait", key, main=_is_main())
        return timed(WORKERS, self._calls.wait, key)

    def withdraw(self, key: Key) -> None:
        """Note that the answers will not be needed; the hub is notified at the next call."""
        self._withdrawn.append(key)

    def tell(self, op: str, key: Key, *buffers: bytes, **more: Any) -> None:
        """Send the hub a message about a call."""
        head = {"name": key[0], "number": key[1], "at": position(), **more}
        self._link.send(encode(op, head, buffers))

    def _begin(self, name: str) -> Key:
        # `withdraw` may run during garbage collection, inside any other code, so it sends nothing.
        while self._withdrawn:
            key = self._withdrawn.popleft()
            self._calls.forget(key)
            self.tell("withdraw", key)
        return self._calls.begin(name)


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
    """Encode a value before its call gets a number, which an invalid call must not use up."""
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            "Workers exchange JSON values. "
            f"Received: {value!r} for {name!r}. "
            "Use only None, bool, int, float, str, list and dict."
        ) from error

"""`SteadyClient`: the coordinator's way to the servers, which outlives them.

A server that is found gone is restored, and asked again. What changes anything has a number, by
which the server, or the one in its place, knows whether it was applied: never twice.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

from replicax._ps.server import is_change

if TYPE_CHECKING:
    from replicax._ps.client import Client
    from replicax._ps.wire import Message

Outlive = Callable[[Callable[[], Any]], Any]


@final
class SteadyClient:
    """Links to all servers, each of which is restored when it is gone.

    Args:
        client: The links.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._changes: Counter[int] = Counter()
        # `outlive(call)` gives `call()`, again after each server that it finds gone was restored.
        self.outlive: Outlive = lambda call: call()

    @property
    def num_servers(self) -> int:
        """How many servers there are."""
        return self._client.num_servers

    def changes(self, server: int) -> int:
        """How many changes a server has confirmed."""
        return self._changes[server]

    def call(
        self, server: int, op: str, head: dict[str, Any] | None = None, buffers: Sequence[Any] = ()
    ) -> Message:
        """Ask a server something; a change is made once.

        Raises:
            UnavailableError: If the server is gone, and will not come back with what it had.
        """
        head = dict(head or {})
        changes = is_change(op, head)
        if changes:
            head["request"] = next(self._numbers)
        reply = self.outlive(lambda: self._client.call(server, op, head, buffers))
        if changes:
            with self._lock:
                self._changes[server] += 1
        return reply

    def each(
        self, op: str, head: dict[str, Any], select: Callable[[Message], Any] = lambda m: m.head
    ) -> list[Any]:
        """Ask all servers the same."""
        return [select(self.call(server, op, head)) for server in range(self.num_servers)]

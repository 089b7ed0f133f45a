"""`SteadyClient`: the coordinator's client for the servers, which outlives them.

A dead server is restored, and asked again. Each change has a number, by which the server, or its
successor, knows whether it was applied: never twice.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

from replicax._ps.server.server import is_change
from replicax._ps.store.client import closed

if TYPE_CHECKING:
    import numpy as np

    from replicax._net import Message
    from replicax._ps.store.client import Client
    from replicax._ps.store.early import Early
    from replicax._ps.store.home import ServerHome

Outlive = Callable[[Callable[[], Any]], Any]


@final
class SteadyClient:
    """Links to all servers, each of which is restored when it is dead."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._changes: Counter[int] = Counter()
        # `outlive(call)` returns `call()`, repeated after each dead server was restored.
        self.outlive: Outlive = lambda call: call()
        # while servers start; None if they were there at once
        self.early: Early | None = None

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
        """Send a server a request; a change is made once.

        `UnavailableError` if the server did not start, or is dead and will not come back with its
        contents.
        """
        self.ready()
        head = dict(head or {})
        changes = is_change(op, head)
        if changes:
            head["request"] = next(self._numbers)
        reply = self.outlive(lambda: self._client.call(server, op, head, buffers))
        if changes:
            with self._lock:
                self._changes[server] += 1
        return reply

    def tell(self, server: int, op: str, head: dict[str, Any], buffers: Sequence[Any] = ()) -> None:
        """Make a change on a server, now or once there are servers."""

        def call() -> None:
            self.call(server, op, head, buffers)

        if self.early is None or not self.early.tell(call):
            call()

    def keep(self, home: ServerHome, value: np.ndarray, *, is_new: bool) -> bool:
        """Keep a variable's value until there are servers; False if they need it now."""
        return self.early is not None and self.early.keep(home, value, is_new=is_new)

    def kept(self, home: ServerHome) -> np.ndarray | None:
        """The value of a variable that no server has yet."""
        return None if self.early is None else self.early.value(home)

    def ready(self) -> None:
        """Wait until the servers have everything that was kept for them."""
        if self.early is not None:
            self.early.settle()

    def close(self) -> None:
        """Stop all waiting for servers."""
        if self.early is not None:
            self.early.end(closed(0))

    def each(
        self, op: str, head: dict[str, Any], select: Callable[[Message], Any] = lambda m: m.head
    ) -> list[Any]:
        """Send all servers the same request."""
        return [select(self.call(server, op, head)) for server in range(self.num_servers)]

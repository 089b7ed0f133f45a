"""What runs in the process of a server or a worker: a listener in front of its state."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, final

from replicax._ps.server_node import ServerNode
from replicax._ps.wire import Listener
from replicax._ps.worker import Worker


@final
class Endpoint:
    """A running member.

    Args:
        state: The server or the worker.
        secret: What whoever asks it has to know.
        host: Where to listen.
        port: The port; the system chooses if it is 0.
        grace: For how many seconds the coordinator may be away; None for ever.
    """

    def __init__(
        self, state: Any, secret: bytes, *, host: str, port: int, grace: float | None = None
    ) -> None:
        self.state = state
        self._grace = grace
        self._changed = threading.Condition()
        self._over = False
        self._chiefs = 0
        self._left_at: float | None = None
        self._listener = Listener(secret, self.handle, host=host, port=port)
        self.addresses = self._listener.start()

    def handle(self, session: Any, message: Any) -> Any:
        """Answer one message."""
        if session.hello.get("role") == "chief" and "chief" not in session.state:
            session.state["chief"] = _Presence(self)
        if message.op == "goodbye":
            self._goodbye()
            return {}, ()
        return self.state.handle(session, message)

    def close(self) -> None:
        """End it, as if its process had ended."""
        self._listener.close()
        self.state.close()
        self._end()

    def wait(self) -> None:
        """Wait until somebody ends it, or the coordinator has said goodbye or was away too long."""
        with self._changed:
            while not self._over and (left := self._time_left()) > 0:
                self._changed.wait(None if left == float("inf") else left)

    def came(self) -> None:
        """The coordinator has connected."""
        with self._changed:
            self._chiefs += 1

    def left(self) -> None:
        """A connection of the coordinator has ended."""
        with self._changed:
            self._chiefs -= 1
            self._left_at = time.monotonic()
            self._changed.notify_all()

    def _goodbye(self) -> None:
        self.state.finish()
        self._end()

    def _end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _time_left(self) -> float:
        if self._grace is None or self._left_at is None or self._chiefs:
            return float("inf")
        return self._left_at + self._grace - time.monotonic()


@final
class _Presence:
    """Is in the state of a session of the coordinator, and so goes when the connection does."""

    def __init__(self, endpoint: Endpoint) -> None:
        endpoint.came()
        weakref.finalize(self, endpoint.left).atexit = False


def start_member(
    role: str,
    index: int,
    secret: bytes,
    settings: dict[str, Any],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Endpoint:
    """Start a server or a worker in this process.

    Args:
        role: "server" or "worker".
        index: Its number among those of its role.
        secret: What whoever asks it has to know.
        settings: Of the strategy.
        host: Where to listen.
        port: The port; the system chooses if it is 0.
    """
    grace = settings.get("grace")
    if role == "worker":
        return Endpoint(Worker(index, secret, settings), secret, host=host, port=port, grace=grace)
    node = ServerNode(index, secret, settings)
    node.begin()
    return Endpoint(node, secret, host=host, port=port, grace=grace)

"""What runs in the process of a server or a worker: a listener in front of its state."""

from __future__ import annotations

import threading
from typing import Any, final

from replicax._ps.server import ParameterServer
from replicax._ps.wire import Listener
from replicax._ps.worker import Worker


@final
class Endpoint:
    """A running member.

    Args:
        state: The server or the worker.
        listener: Where it is asked.
    """

    def __init__(self, state: Any, listener: Listener) -> None:
        self.state = state
        self._listener = listener
        self._closed = threading.Event()
        self.addresses = listener.start()

    def close(self) -> None:
        """End it."""
        self._listener.close()
        self._closed.set()

    def wait(self) -> None:
        """Wait for its end."""
        self._closed.wait()


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
    if role == "server":
        state: Any = ParameterServer(index, settings)
    else:
        state = Worker(index, secret, settings)
    return Endpoint(state, Listener(secret, state.handle, host=host, port=port))

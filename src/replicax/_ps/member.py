"""What runs in the process of a server or a worker: a listener in front of its state.

The state is made when a coordinator says hello for a run: that is when the settings are known. A
coordinator that was started anew begins a new run, and gets a new state.
"""

from __future__ import annotations

import functools
import logging
import pickle
import threading
from collections.abc import Callable, Mapping
from typing import Any, final

import jax

from replicax._core.errors import ClusterError
from replicax._ps.contact import Presence
from replicax._ps.encryption import server_context
from replicax._ps.server import ParameterServer
from replicax._ps.wire import Listener
from replicax._ps.worker import Worker

logger = logging.getLogger("replicax")


class WrongRun(ClusterError):
    """Raised when somebody means a run that is over, or has not begun."""

    def __init__(self, theirs: Any, ours: Any) -> None:
        super().__init__(theirs, ours)
        self.theirs, self.ours = theirs, ours

    def __str__(self) -> str:
        return (
            "A server or a worker belongs to one run at a time. Received: a message of run "
            f"{self.theirs!r}, during run {self.ours!r}. Another coordinator uses this cluster, or "
            "this process began anew. Give each coordinator a cluster of its own."
        )


@final
class Post:
    """A place for a server or a worker: empty at first, and again when a new run begins.

    Args:
        presence: Says who is here, and hears that it may go.
        make: Makes the state of a run, from its settings.
    """

    def __init__(self, presence: Presence, make: Callable[[dict[str, Any]], Any]) -> None:
        self._presence, self._make = presence, make
        self._lock = threading.Lock()
        self.run: str | None = None
        self.state: Any = None

    def handle(self, session: Any, message: Any) -> Any:
        """Answer one message."""
        about = self._presence.answer(message.op)
        if about is not None:
            return about, ()
        run = session.hello.get("run")
        if message.op == "ping":
            return {"platform": jax.default_backend(), "run": self.run}, ()
        if message.op == "configure":
            return self._configure(run, message)
        if run != self.run:
            raise WrongRun(run, self.run)
        return self.state.handle(session, message)

    def _configure(self, run: str, message: Any) -> Any:
        with self._lock:
            if run != self.run:
                if self.run is not None:
                    logger.warning("A new run begins here: %s, after %s.", run, self.run)
                self._end()
                self.state = self._make(pickle.loads(message.buffers[0]))
                self.run = run
        return {}, ()

    def _end(self) -> None:
        end = getattr(self.state, "close", None)
        if end is not None:
            end()

    def close(self) -> None:
        """End the state."""
        with self._lock:
            self._end()


@final
class Endpoint:
    """A running member.

    Args:
        presence: That it is there, and for how long.
        post: The place of the server or the worker.
        listener: Where it is asked.
    """

    def __init__(self, presence: Presence, post: Post, listener: Listener) -> None:
        self._presence, self._post, self._listener = presence, post, listener
        self.addresses = presence.addresses = listener.start()

    @property
    def state(self) -> Any:
        """The server or the worker; None before a run begins."""
        return self._post.state

    def close(self) -> None:
        """End it."""
        self._listener.close()
        self._post.close()
        self._presence.leave()

    def wait(self) -> None:
        """Wait until it is closed, or the coordinator has said goodbye."""
        self._presence.wait()


def start_member(
    role: str,
    index: int,
    secret: bytes,
    settings: Mapping[str, Any] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Endpoint:
    """Start a server or a worker in this process.

    Args:
        role: "server" or "worker".
        index: Its number among those of its role.
        secret: What whoever asks it has to know.
        settings: Nothing so far: those of the strategy come with the run.
        host: Where to listen.
        port: The port; the system chooses if it is 0.
    """
    del settings
    presence = Presence(role, index)
    if role == "server":
        post = Post(presence, functools.partial(ParameterServer, index))
    else:
        post = Post(presence, functools.partial(Worker, index, secret))
    listener = Listener(secret, post.handle, host=host, port=port, tls=server_context())
    return Endpoint(presence, post, listener)

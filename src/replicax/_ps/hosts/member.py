"""The process of a server or a worker: a listener in front of its state.

The state is made when a coordinator says hello for a run, because the settings come with that. A
restarted coordinator begins a new run, and gets a new state.
"""

from __future__ import annotations

import functools
import logging
import pickle
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, final

import jax

from replicax._core.errors import ClusterError
from replicax._core.machine.startup import begin
from replicax._net import RequestServer
from replicax._ps.hosts.cluster import place_of
from replicax._ps.hosts.contact import Presence
from replicax._ps.hosts.encryption import server_context
from replicax._ps.server.server_node import ServerNode
from replicax._ps.worker import Worker

logger = logging.getLogger("replicax")

# Seconds for which a run's state outlives its coordinator, which may only have lost
# its connections. The state may be large, and nobody may ever come back for it.
KEPT = 600.0
_SECONDS_TO_PART = 5.0  # seconds from the end of a coordinator's connections to its goodbye


class WrongRun(ClusterError):
    """Raised for a request of a run that is over or has not begun."""

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

    `make` makes the state of a run from its settings. The state is kept for `kept` seconds without
    its coordinator, which may be away for `parting` seconds before it is said to be gone.
    """

    def __init__(
        self,
        presence: Presence,
        make: Callable[[dict[str, Any]], Any],
        *,
        kept: float = KEPT,
        parting: float = _SECONDS_TO_PART,
    ) -> None:
        begin()
        self._presence, self._make = presence, make
        self._kept, self._parting = kept, parting
        # Reentrant: the thread that holds it may collect a caller's state as garbage.
        self._lock = threading.RLock()
        self.run: str | None = None
        self.state: Any = None
        self._chiefs = 0
        self._farewell: threading.Timer | None = None
        self._is_missed = False

    def handle(self, caller: Any, message: Any) -> Any:
        """Answer one message."""
        about = self._presence.answer(message.op)
        if about is not None:
            return about, ()
        run = caller.hello.get("run")
        if message.op == "ping":
            life = getattr(self.state, "life", None)
            late = getattr(self.state, "staleness", [])
            about = {"platform": jax.default_backend(), "run": self.run, "life": life}
            return {**about, "staleness": late}, ()
        if message.op == "configure":
            caller.state["chief"] = _Visit(self)
            return self._configure(run, message)
        if run != self.run:
            raise WrongRun(run, self.run)
        return self.state.handle(caller, message)

    def _configure(self, run: str, message: Any) -> Any:
        with self._lock:
            if run != self.run:
                if self.run is not None:
                    logger.warning("A new run begins here: %s, after %s.", run, self.run)
                self._end(for_good=True)
                self.state = self._make(pickle.loads(message.buffers[0]))
                self.run = run
        return {}, ()

    def came(self) -> None:
        """A coordinator has connected."""
        with self._lock:
            self._chiefs += 1
            self._wait_no_more()

    def left(self) -> None:
        """A coordinator's connection has ended; after the last one, it may be gone for good."""
        with self._lock:
            self._chiefs -= 1
            self._wait_no_more()
            if not self._chiefs and self.run is not None:
                self._wait(self._parting, self._miss)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._farewell = threading.Timer(seconds, then)
        self._farewell.daemon = True
        self._farewell.start()

    def _miss(self) -> None:
        with self._lock:
            if self._chiefs or self.run is None:
                return
            self._is_missed = True
            logger.warning(
                "The coordinator of run %s has gone without `strategy.close()`. What it had here "
                "is kept for %g s. Another coordinator may come at any time.",
                self.run,
                self._kept,
            )
            self._wait(self._kept, self._forget)

    def _wait_no_more(self) -> None:
        self._is_missed = False
        if self._farewell is not None:
            self._farewell.cancel()
            self._farewell = None

    def _forget(self) -> None:
        with self._lock:
            if self._chiefs or self.run is None:
                return
            logger.warning("The coordinator of run %s is gone; what it had here is, too.", self.run)
            self._end(for_good=True)

    def _end(self, *, for_good: bool = False) -> None:
        state, self.state, self.run = self.state, None, None
        end = getattr(state, "abandon" if for_good else "close", None)
        if end is not None:
            end()

    def close(self) -> None:
        """End the state, and remove what it has written if nobody will come for it."""
        with self._lock:
            for_good = self._is_missed or self._presence.is_over
            self._wait_no_more()
            self._end(for_good=for_good)


@final
class _Visit:
    """Lives in the state that is kept for a coordinator, and ends with the connection."""

    def __init__(self, post: Post) -> None:
        post.came()
        weakref.finalize(self, post.left).atexit = False


@final
class Endpoint:
    """A running member."""

    def __init__(self, presence: Presence, post: Post, listener: RequestServer) -> None:
        self._presence, self._post, self._listener = presence, post, listener
        self.addresses = presence.addresses = listener.start()

    @property
    def state(self) -> Any:
        """The server or the worker; None before a run begins."""
        return self._post.state

    def close(self) -> None:
        """End it as if its process had ended."""
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
    at: str = "",
) -> Endpoint:
    """Start a server or a worker in this process.

    The system chooses a port if it is 0. `at` is what `at_of` gives, if the cluster has a
    description. The settings of the strategy come with the run.
    """
    del settings
    presence = Presence(role, index)
    if role == "server":
        post = Post(presence, functools.partial(ServerNode.begun, index, secret))
    else:
        post = Post(presence, functools.partial(Worker, index, secret))
    place = place_of(role, index, at)
    tls = server_context()
    listener = RequestServer(secret, post.handle, host=host, port=port, tls=tls, place=place)
    return Endpoint(presence, post, listener)

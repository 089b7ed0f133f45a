"""The process of a server or a worker: a listener in front of its state.

The state is made when a coordinator says hello for a run, because the settings come with that. A
restarted coordinator begins a new run, and gets a new state. A server's state has snapshots, a
replica on a partner, and the replicas that it has of others.
"""

from __future__ import annotations

import functools
import logging
import pickle
import secrets
import shutil
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import ClusterError, UsageError
from replicax._core.machine.startup import begin
from replicax._net import Reply, RequestServer, raw
from replicax._ps.hosts.cluster import Member, place_of
from replicax._ps.hosts.contact import ABOUT, GOODBYE, Presence, server_context
from replicax._ps.server.replicas import Mirror, Shadows
from replicax._ps.server.server import ParameterServer, is_change
from replicax._ps.server.snapshot_files import SnapshotFolder
from replicax._ps.server.snapshots import Snapshots
from replicax._ps.worker import Worker

logger = logging.getLogger("replicax")

# Seconds for which a run's state outlives its coordinator, which may only have lost
# its connections. The state may be large, and nobody may ever come back for it.
KEPT = 600.0
_SECONDS_TO_PART = 5.0  # seconds from the end of a coordinator's connections to its goodbye


class NotOpen(ClusterError):
    """Raised by a restarted server until the coordinator knows of it."""


@final
class ServerNode:
    """A server that can be restored."""

    def __init__(self, index: int, secret: bytes, settings: dict[str, Any]) -> None:
        self.server = ParameterServer(index, settings)
        self._settings = settings
        self.life = secrets.token_hex(8)
        self._is_open = False
        self._mirror = Mirror(self.server, secret, settings["run"], self.life)
        self._shadows = Shadows(settings)
        self._snapshots: Snapshots | None = None

    def begin(self) -> ServerNode:
        """Restore the saved state, if any, and take snapshots from now on if wanted."""
        folder, seconds = self._settings.get("snapshot_dir"), self._settings.get("snapshot_seconds")
        if folder and seconds:
            try:
                if not self._settings.get("is_kept"):  # everybody may make folders there: `/tmp`
                    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
                place = SnapshotFolder(Path(folder) / f"server-{self.server.index}", self.life)
            except OSError as error:
                raise UsageError(
                    f"Cannot write snapshots to {folder!r}: {error.strerror}. Pass a "
                    "`snapshot_dir` that every server can write."
                ) from error
            run = self._settings["run"]
            self._snapshots = Snapshots(self.server, place, run=run, seconds=seconds)
            self._snapshots.begin()
        return self

    def handle(self, caller: Any, message: Any) -> Reply:
        """Answer one message.

        `NotOpen` if a worker asks before the coordinator knows the server's contents.
        """
        name = f"op_{message.op}"
        if own := getattr(self, name, None) or getattr(self._shadows, name, None):
            return own(message)
        if message.op == "plan" and not self._is_open:
            raise NotOpen(self.server.index)
        reply = self.server.handle(caller, message)
        if self._mirror.is_on and (message.head.get("push") or is_change(message.op, message.head)):
            self._mirror.settle()
        return reply

    @property
    def staleness(self) -> list[tuple[int, int]]:
        """The numbers of gradients by lateness in updates."""
        return list(dict(self.server.staleness).items())

    def abandon(self) -> None:
        """End it and remove its files: its program is gone."""
        self.close()
        if self._snapshots is not None and not self._settings["is_kept"]:
            folder = Path(self._settings["snapshot_dir"])
            shutil.rmtree(folder / f"server-{self.server.index}", ignore_errors=True)
            with suppress(OSError):  # it holds other files
                folder.rmdir()

    def close(self) -> None:
        """End it, as if the process had ended."""
        if self._snapshots is not None:
            self._snapshots.close()
        self._mirror.close()

    def op_open(self, message: Any) -> Reply:
        """Tell the contents, and admit workers."""
        server = self.server
        with server.lock:
            head = {"life": self.life, "clock": server.clock, "changes": server.changes}
            applied = server.applied.ids()
        self._is_open = message.head["workers"]
        return head, [raw(np.array(applied, np.int64))]

    def op_partner(self, message: Any) -> Reply:
        self._mirror.follow(message.head["addresses"])
        return {}, ()

    def op_recover(self, message: Any) -> Reply:
        """Take over the partner's copy of the previous process's state."""
        self._mirror.fetch(message.head["addresses"])
        if self._snapshots is not None:
            self._snapshots.forget()
        return {}, ()


class WrongRun(ClusterError):
    """Raised for a request of a run that is over or has not begun."""

    def __init__(self, theirs: Any, ours: Any) -> None:
        super().__init__(theirs, ours)  # so that it can be pickled
        self.theirs, self.ours = theirs, ours

    def __str__(self) -> str:
        return (
            f"A message of run {self.theirs!r} arrived during run {self.ours!r}: another "
            "coordinator uses this cluster, or this process was restarted. Give each coordinator "
            "its own cluster."
        )


@final
class Post:
    """A member in this process: its state is made when a run begins, and anew for another run.

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
        self.state: Any = None  # the server or the worker; None before a run begins
        self._chiefs = 0
        self._farewell: threading.Timer | None = None
        self._is_missed = False
        self._listener: RequestServer | None = None
        self.addresses: tuple[str, ...] = ()

    def listen(self, listener: RequestServer) -> None:
        self._listener = listener
        self.addresses = self._presence.addresses = listener.start()

    def wait(self) -> None:
        """Wait until it is closed, or the coordinator has said goodbye."""
        self._presence.has_left.wait()

    def handle(self, caller: Any, message: Any) -> Any:
        if message.op in (ABOUT, GOODBYE):
            return self._presence.answer(message.op), ()
        run = caller.hello.get("run")
        if message.op == "ping":
            life = getattr(self.state, "life", None)
            late = getattr(self.state, "staleness", [])
            about = {"platform": jax.default_backend(), "run": self.run, "life": life}
            return {**about, "staleness": late}, ()
        if message.op == "configure":
            caller.state["chief"] = _Visit(self)
            return self._configure(run, message)
        if run is None or run != self.run:
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
                "The coordinator of run %s has gone without `strategy.close()`. Its state here "
                "is kept for %g s. Another coordinator may connect at any time.",
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
            logger.warning("The coordinator of run %s is gone, and its state here, too.", self.run)
            self._end(for_good=True)

    def _end(self, *, for_good: bool = False) -> None:
        state, self.state, self.run = self.state, None, None
        end = getattr(state, "abandon" if for_good else "close", None)
        if end is not None:
            end()

    def close(self) -> None:
        """End it as if its process had ended.

        What the state has written is removed if nobody will come for it.
        """
        if self._listener is not None:
            self._listener.close()
        with self._lock:
            for_good = self._is_missed or self._presence.is_over
            self._wait_no_more()
            self._end(for_good=for_good)
        self._presence.has_left.set()


@final
class _Visit:
    """Lives in the state that is kept for a coordinator, and ends with the connection."""

    def __init__(self, post: Post) -> None:
        post.came()
        weakref.finalize(self, post.left).atexit = False


def start_member(
    role: str,
    index: int,
    secret: bytes,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    at: str = "",
) -> Post:
    """Start a server or a worker in this process.

    The system chooses a port if it is 0. `at` is what `at_of` gives, if the cluster has a
    description. The settings of the strategy come with the run.
    """
    presence = Presence(role, index)
    if role == "server":
        post = Post(presence, lambda settings: ServerNode(index, secret, settings).begin())
    else:
        post = Post(presence, functools.partial(Worker, index, secret))
    place = place_of(role, index, at)
    tls = server_context()
    post.listen(RequestServer(secret, post.handle, host=host, port=port, tls=tls, place=place))
    return post


@final
class ThreadCluster:
    """Servers and workers in this process, which talk as they would between machines."""

    where = "in threads of this process"

    def __init__(self, num_servers: int, num_workers: int) -> None:
        self.secret = secrets.token_bytes(32)
        self._running: dict[tuple[str, int], tuple[int, Post]] = {}
        for role, count in [("server", num_servers), ("worker", num_workers)]:
            for index in range(count):
                self._start(role, index, 0)

    @property
    def num_servers(self) -> int:
        return self._count("server")

    @property
    def num_workers(self) -> int:
        return self._count("worker")

    def member(
        self, role: str, index: int, *, after: int = -1, timeout: float | None = None
    ) -> Member:
        """The address of a member; one that was ended is started anew."""
        incarnation, endpoint = self._running[role, index]
        if incarnation <= after:
            endpoint.close()
            self._start(role, index, after + 1)
            incarnation, endpoint = self._running[role, index]
        return Member(role, index, endpoint.addresses, incarnation)

    def kill(self, role: str, index: int) -> None:
        """End a member as if its process had died."""
        self._running[role, index][1].close()

    def add_worker(self) -> int:
        index = self.num_workers
        self._start("worker", index, 0)
        return index

    def close(self) -> None:
        for _, endpoint in self._running.values():
            endpoint.close()

    def _count(self, role: str) -> int:
        return sum(kind == role for kind, _ in self._running)

    def _start(self, role: str, index: int, incarnation: int) -> None:
        endpoint = start_member(role, index, self.secret)
        self._running[role, index] = incarnation, endpoint

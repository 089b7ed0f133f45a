"""The coordinator's connections to the servers, and what is kept until there are servers.

`Client` connects, and connects again after a connection broke. `SteadyClient` restores a dead
server and asks again; each change has a number, by which the server, or its successor, applies it
once. `Early` keeps what a program does to variables while the servers start: nobody else knows
these variables yet, so their values are those written last.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._core.errors import UnavailableError
from replicax._net import ConnectionLost, Message, Refused, RemoteError, RequestClient
from replicax._ps.hosts.cluster import SERVER, task_name
from replicax._ps.queue.lanes import ServerGone
from replicax._ps.server.server import is_change

if TYPE_CHECKING:
    from replicax._ps.store.home import ServerHome

# Errors of a restarted server until the coordinator has restored it.
_REPLACED = ("WrongRun", "NotOpen", "Deposed")

Outlive = Callable[[Callable[[], Any]], Any]

MOST_BYTES = 256 << 20  # more bytes are not kept twice: then servers are waited for


@final
class Client:
    """Links to all servers."""

    def __init__(
        self, dial: Callable[[Sequence[str]], RequestClient], addresses: Sequence[Sequence[str]]
    ) -> None:
        self._dial = dial
        self._addresses = [tuple(one) for one in addresses]
        self._links: list[RequestClient | None] = [None] * len(addresses)
        self._lock = threading.Lock()
        self._lost: dict[int, Exception] = {}
        self._closed = False
        # The links of a client that was not closed end with it.
        weakref.finalize(self, _close_links, self._links).atexit = False

    @property
    def num_servers(self) -> int:
        return len(self._addresses)

    @property
    def addresses(self) -> list[tuple[str, ...]]:
        return list(self._addresses)

    def move(self, server: int, addresses: Sequence[str]) -> None:
        """Note that a server listens elsewhere now."""
        with self._lock:
            if self._addresses[server] != tuple(addresses):
                self._addresses[server] = tuple(addresses)
                self._drop(server)

    def call(
        self, server: int, op: str, head: dict[str, Any] | None = None, buffers: Sequence[Any] = ()
    ) -> Message:
        """Send a server a request and return its answer.

        `ServerGone` if it cannot be reached, or the connection breaks; `UnavailableError` if it has
        lost its contents.
        """
        self._check_open(server)
        with self._watched(server):
            # Not by `begin`: an interrupt between request and answer would leave the link busy.
            return self._link(server).call(op, head or {}, buffers)

    def begin(
        self, server: int, op: str, head: dict[str, Any] | None = None, buffers: Sequence[Any] = ()
    ) -> Callable[[], Message]:
        """Send a server a request without waiting; the returned function waits, and must be run."""
        self._check_open(server)
        with self._watched(server):
            end = self._link(server).begin(op, head or {}, buffers)

        def ended() -> Message:
            with self._watched(server):
                return end()

        return ended

    def _check_open(self, server: int) -> None:
        if self._lost:
            self.check(server)
        if self._closed:
            raise closed(server)

    @contextmanager
    def _watched(self, server: int) -> Iterator[None]:
        try:
            yield
        except (ConnectionLost, Refused, OSError) as error:
            with self._lock:
                self._drop(server)
            raise ServerGone(server, str(error)) from error
        except RemoteError as error:
            if error.kind not in _REPLACED:
                raise
            with self._lock:
                self._drop(server)
            raise ServerGone(server, "It has begun anew.") from error

    def lose(self, server: int, error: Exception) -> None:
        """Note that a server has lost its contents, so that requests to it fail."""
        self._lost[server] = error
        self.drop(server)

    def check(self, server: int) -> None:
        """Raise the error that `lose` was given for a server."""
        if server in self._lost:
            raise self._lost[server].with_traceback(None)

    def drop(self, server: int) -> None:
        """End the link to a server; pending requests get ServerGone."""
        with self._lock:
            self._drop(server)

    def close(self) -> None:
        self._closed = True
        with self._lock:
            for server in range(len(self._links)):
                self._drop(server)

    def _link(self, server: int) -> RequestClient:
        link = self._links[server]
        if link is not None:
            return link
        with self._lock:
            if self._links[server] is None:
                self._links[server] = self._dial(self._addresses[server])
            link = self._links[server]
        assert link is not None
        return link

    def _drop(self, server: int) -> None:
        link, self._links[server] = self._links[server], None
        if link is not None:
            with suppress(OSError):
                link.close()


def _close_links(links: Sequence[RequestClient | None]) -> None:
    for link in links:
        if link is not None:
            with suppress(OSError):
                link.close()


def closed(server: int) -> UnavailableError:
    return UnavailableError(
        f"Cannot use server {server}: the strategy is closed, and its variables are gone. Save the "
        "model or read its values before `strategy.close()`.",
        task_name(SERVER, server),
    )


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
        self.early = Early()

    @property
    def num_servers(self) -> int:
        return self._client.num_servers

    def changes(self, server: int) -> int:
        """The number of changes that a server has confirmed."""
        return self._changes[server]

    def call(
        self, server: int, op: str, head: dict[str, Any] | None = None, buffers: Sequence[Any] = ()
    ) -> Message:
        """Send a server a request; a change is made once.

        `UnavailableError` if the server did not start, or is dead and will not come back with its
        contents.
        """
        self.early.settle()
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

        if not self.early.tell(call):
            call()


@final
class Early:
    """Keeps values of variables, and calls to servers, until there are servers.

    `meet` waits for all of these, in a thread of its own; None if they are there.
    """

    def __init__(self, meet: Callable[[], None] | None = None) -> None:
        self._found: Future[Exception | None] = Future()
        # Reentrant: the calls that are sent at last ask whether everything has been sent.
        self._lock = threading.RLock()
        self._values: dict[ServerHome, np.ndarray] = {}
        self._later: dict[Any, Callable[[], object]] = {}  # in order
        self._is_sending, self.is_over = False, meet is None
        if meet is not None:
            threading.Thread(
                target=self._meet, args=(meet,), name="replicax-servers", daemon=True
            ).start()

    def keep(self, home: ServerHome, value: np.ndarray, *, is_new: bool) -> bool:
        """Keep the value of a variable that no server has; False if servers must be told now."""
        with self._lock:
            known = is_new or home in self._values
            size = value.nbytes + sum(kept.nbytes for kept in self._values.values())
            if self.is_over or self._is_sending or not known or size > MOST_BYTES:
                return False
            # A copy, because the caller may change the array.
            self._values[home] = np.array(value)
            self._later[home] = functools.partial(self._create, home)
            return True

    def value(self, home: ServerHome) -> np.ndarray | None:
        """The value of a variable, if it is kept here."""
        with self._lock:
            return self._values.get(home)

    def tell(self, call: Callable[[], object]) -> bool:
        """Make a call once there are servers, after all earlier ones; False: make it now."""
        with self._lock:
            if self.is_over or self._is_sending:
                return False
            self._later[call] = call
            return True

    def settle(self) -> None:
        """Wait for the servers and send them everything kept here."""
        if self.is_over:
            return
        error = self._found.result()
        if error is not None:
            raise error.with_traceback(None)
        with self._lock:
            if self._is_sending:
                return
            self._is_sending = True
            try:
                while self._later:
                    key = next(iter(self._later))
                    self._later[key]()
                    del self._later[key]  # after a failure the next caller tries again
                self.is_over = True
            finally:
                self._is_sending = False

    def end(self, error: Exception) -> None:
        """Stop all waiting."""
        with self._lock:
            if not self._found.done():
                self._found.set_result(error)

    def _create(self, home: ServerHome) -> None:
        home.create(self._values[home])
        del self._values[home]

    def _meet(self, meet: Callable[[], None]) -> None:
        failure = None
        try:
            meet()
        except Exception as error:  # for whoever needs a server
            failure = error
        with self._lock:
            if not self._found.done():
                self._found.set_result(failure)

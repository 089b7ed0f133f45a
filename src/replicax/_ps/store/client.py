"""The coordinator's links to the servers, opened when needed and again after they broke."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, final

from replicax._core.errors import UnavailableError
from replicax._net import ConnectionLost, Message, Refused, RemoteError, RequestClient
from replicax._ps.queue.lanes import ServerGone

# Errors of a restarted server until the coordinator has restored it.
_REPLACED = ("WrongRun", "NotOpen", "Deposed")


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
        """How many servers there are."""
        return len(self._addresses)

    @property
    def addresses(self) -> list[tuple[str, ...]]:
        """Where the servers listen."""
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
        """End all links for good."""
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
        "Variables can be read and changed until their strategy is closed. Received: a use of "
        f"server {server}, after that. It has ended, and what it held is gone. Save the model, or "
        "read what is wanted, before `strategy.close()`.",
        f"/job:ps/task:{server}",
    )

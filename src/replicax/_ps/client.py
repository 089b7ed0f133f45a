"""The way to the servers: a link to each, opened when it is needed and again after it broke."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, final

from replicax._ps.lanes import ServerGone
from replicax._ps.wire import Link, LinkLost, Message, Refused


@final
class Client:
    """Links to all servers.

    Args:
        secret: What the cluster's members know.
        addresses: Where each server listens.
        hello: Who this client is.
    """

    def __init__(
        self,
        secret: bytes,
        addresses: Sequence[Sequence[str]],
        hello: dict[str, Any],
        *,
        patience: float = 10.0,
    ) -> None:
        self._secret, self._hello, self._patience = secret, hello, patience
        self._addresses = [tuple(one) for one in addresses]
        self._links: list[Link | None] = [None] * len(addresses)
        self._lock = threading.Lock()

    @property
    def num_servers(self) -> int:
        """How many servers there are."""
        return len(self._addresses)

    @property
    def addresses(self) -> list[tuple[str, ...]]:
        """Where the servers listen."""
        return list(self._addresses)

    def move(self, server: int, addresses: Sequence[str]) -> None:
        """A server listens elsewhere now."""
        with self._lock:
            if self._addresses[server] != tuple(addresses):
                self._addresses[server] = tuple(addresses)
                self._drop(server)

    def call(
        self, server: int, op: str, head: dict[str, Any] | None = None, buffers: Sequence[Any] = ()
    ) -> Message:
        """Ask a server something.

        Raises:
            ServerGone: If it cannot be reached, or the connection breaks.
        """
        try:
            return self._link(server).call(op, head or {}, buffers)
        except (LinkLost, Refused, OSError) as error:
            with self._lock:
                self._drop(server)
            raise ServerGone(server) from error

    def drop(self, server: int) -> None:
        """End the link to a server; who waits for an answer gets ServerGone."""
        with self._lock:
            self._drop(server)

    def close(self) -> None:
        """End all links."""
        with self._lock:
            for server in range(len(self._links)):
                self._drop(server)

    def _link(self, server: int) -> Link:
        link = self._links[server]
        if link is not None:
            return link
        with self._lock:
            if self._links[server] is None:
                self._links[server] = Link.connect(
                    self._addresses[server], self._secret, hello=self._hello, timeout=self._patience
                )
            link = self._links[server]
        assert link is not None
        return link

    def _drop(self, server: int) -> None:
        link, self._links[server] = self._links[server], None
        if link is not None:
            with suppress(OSError):
                link.close()

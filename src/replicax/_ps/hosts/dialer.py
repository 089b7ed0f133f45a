"""Connecting to members of a cluster: with its secret, for a run, and encrypted if so set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from replicax._net import ConnectionLost, RemoteError, RequestClient
from replicax._ps.hosts.cluster import place_of
from replicax._ps.hosts.encryption import client_context

PATIENCE = 10.0  # seconds to establish a connection


@final
@dataclass(frozen=True)
class Dialer:
    """Connects to members.

    `settings` returns what a member that may not have begun this run is told; None tells nothing.
    """

    secret: bytes = field(repr=False)
    run: str
    hello: dict[str, Any]
    settings: Callable[[], bytes] | None = field(default=None, repr=False)

    @property
    def _place(self) -> str:
        role = self.hello["role"]
        return place_of(role, self.hello["index"]) if "index" in self.hello else f"/job:{role}"

    @property
    def bare(self) -> Dialer:
        """A dialer that tells members nothing."""
        return dataclasses.replace(self, settings=None)

    def __call__(self, addresses: Sequence[str]) -> RequestClient:
        """A link to the member that listens there."""
        link = RequestClient.connect(
            addresses,
            self.secret,
            hello={**self.hello, "run": self.run},
            place=self._place,
            timeout=PATIENCE,
            tls=client_context(),
        )
        if self.settings is not None:
            try:
                link.call("configure", {}, [self.settings()])
            except BaseException:
                link.close()
                raise
        return link

    def is_there(self, addresses: Sequence[str]) -> bool:
        """Whether the member that listens there answers."""
        try:
            link = self.bare(addresses)
        except (ConnectionLost, OSError):
            return False
        try:
            link.call("ping", timeout=PATIENCE)
            return True
        except (ConnectionLost, RemoteError):
            return False
        finally:
            link.close()

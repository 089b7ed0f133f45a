"""A cluster of threads: servers and workers in this process, for tests and for debugging."""

from __future__ import annotations

import secrets
from typing import final

from replicax._ps.hosts.cluster import Member
from replicax._ps.hosts.member import Endpoint, start_member


@final
class ThreadCluster:
    """Servers and workers in this process, which talk as they would between machines."""

    def __init__(self, num_servers: int, num_workers: int) -> None:
        self.secret = secrets.token_bytes(32)
        self._running: dict[tuple[str, int], tuple[int, Endpoint]] = {}
        for role, count in [("server", num_servers), ("worker", num_workers)]:
            for index in range(count):
                self._start(role, index, 0)

    @property
    def num_servers(self) -> int:
        """How many servers there are."""
        return self._count("server")

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
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
        return Member(role, index, tuple(endpoint.addresses), incarnation)

    def kill(self, role: str, index: int) -> None:
        """End a member as if its process had died."""
        self._running[role, index][1].close()

    def add_worker(self) -> int:
        """Start one more worker and return its number."""
        index = self.num_workers
        self._start("worker", index, 0)
        return index

    def close(self) -> None:
        """End all members."""
        for _, endpoint in self._running.values():
            endpoint.close()

    def _count(self, role: str) -> int:
        return sum(kind == role for kind, _ in self._running)

    def _start(self, role: str, index: int, incarnation: int) -> None:
        endpoint = start_member(role, index, self.secret)
        self._running[role, index] = incarnation, endpoint

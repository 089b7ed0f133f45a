"""The coordinator brings back servers that died, and counts what was lost with them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, final

from replicax._core.errors import UnavailableError
from replicax._net import RemoteError, numbers_of, tries
from replicax._ps.hosts.cluster import SERVER, task_name
from replicax._ps.queue.lanes import ServerGone

if TYPE_CHECKING:
    import numpy as np

    from replicax._ps.hosts.cluster import Cluster
    from replicax._ps.store.servers import Client

logger = logging.getLogger("replicax")

# Ids of closures kept for each server: half of the ids that servers remember (see `Applied`), so
# that a forgotten closure is not taken for a lost one.
_REMEMBERED = 1 << 16


class Recovery(NamedTuple):
    """A server that died and is back."""

    server: int
    lost_updates: int  # closures that had ended, and whose changes are lost
    seconds: float  # from when somebody needed it
    source: str  # of its state: "replica" or "snapshot"


@final
class Recoveries:
    """Brings servers back, and keeps count.

    `changes` returns how many of the coordinator's changes each server has confirmed. `patience` is
    in seconds; None for as long as the cluster waits.
    """

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        changes: Callable[[int], int],
        *,
        replicas: bool,
        patience: float | None,
    ) -> None:
        self.records: list[Recovery] = []
        self._cluster, self._client, self._changes = cluster, client, changes
        self._replicas, self._patience = replicas, patience
        self._incarnations = dict.fromkeys(range(client.num_servers), 0)
        self._lives: dict[int, str] = {}
        self._clocks: dict[int, int] = {}
        self._ended: dict[int, dict[int, None]] = {}

    def meet(self) -> None:
        """Wait for all servers, which are new, and open them to workers."""
        for server in range(self._client.num_servers):
            self._meet(server)
        if self._replicas:
            for server in range(self._client.num_servers):
                self._tell_partner(server)

    def _meet(self, server: int) -> None:
        gone: Exception | None = None
        for _ in tries(self._patience or 0.0):
            member = self._cluster.member("server", server, timeout=self._patience)
            self._incarnations[server] = member.incarnation
            self._client.move(server, member.addresses)
            try:
                self._lives[server] = self._opened(server, workers=True)[0]["life"]
                return
            except ServerGone as error:  # it has died, but holds nothing yet
                gone = error
        assert gone
        raise gone

    def note(self, closure: int, pushed: list[int], clocks: dict[str, int]) -> None:
        """Note that a closure has ended and pushed to these servers."""
        for server in pushed:
            ended = self._ended.setdefault(server, {})
            ended[closure] = None
            if len(ended) > _REMEMBERED:
                del ended[next(iter(ended))]
            self._clocks[server] = max(self._clocks.get(server, 0), clocks[str(server)])

    def restore(self, server: int) -> None:
        self._client.check(server)
        began = time.monotonic()
        for _ in tries(math.inf):
            with suppress(ServerGone):  # it died again
                self._restore(server, began)
                return

    def _restore(self, server: int, began: float) -> None:
        life: str | None = None
        with suppress(ServerGone):
            life = self._client.call(server, "ping").head["life"]
        if life is not None and life == self._lives[server]:
            return  # only the connection was lost
        if life is None:
            known = self._incarnations[server]
            member = self._cluster.member("server", server, after=known, timeout=self._patience)
            self._incarnations[server] = member.incarnation
            self._client.move(server, member.addresses)
        source = self._source(server)
        head, applied = self._opened(server, workers=False)
        self._check(server, head)
        lost = self._count_lost(server, head["clock"], applied)
        self._lives[server] = head["life"]
        if self._replicas:
            for one in {server, (server - 1) % self._client.num_servers}:
                self._tell_partner(one)
        self._opened(server, workers=True)
        record = Recovery(server, lost, time.monotonic() - began, source)
        self.records.append(record)
        logger.warning(
            "Parameter server %d had died and is back from its %s after %.1f s; %s.",
            server,
            source,
            record.seconds,
            f"{lost} update(s) were lost" if lost else "nothing was lost",
        )

    def _opened(self, server: int, *, workers: bool) -> tuple[dict[str, Any], np.ndarray]:
        """The contents of a server, and whether workers may use it."""
        reply = self._client.call(server, "open", {"workers": workers})
        return reply.head, numbers_of(reply.buffers[0])

    def _source(self, server: int) -> str:
        if self._replicas:
            try:
                self._client.call(server, "recover", self._partner_of(server))
                return "replica"
            except RemoteError as error:
                logger.warning("Parameter server %d has no replica either: %s", server, error)
        return "snapshot"

    def _tell_partner(self, server: int) -> None:
        try:
            self._client.call(server, "partner", self._partner_of(server))
        except (ServerGone, RemoteError) as error:
            # Whoever restores the dead one tells the other one again.
            logger.warning("Parameter server %d goes on without a replica: %s", server, error)

    def _partner_of(self, server: int) -> dict[str, Any]:
        partner = (server + 1) % self._client.num_servers
        return {"addresses": self._client.addresses[partner]}

    def _check(self, server: int, head: dict[str, Any]) -> None:
        """Check that everything the coordinator has made is there."""
        if head["changes"] >= self._changes(server):
            return
        error = UnavailableError(
            f"Server {server} came back with {head['changes']} of the {self._changes(server)} "
            "changes made there: it had no complete snapshot and no replica. Restore the last "
            "checkpoint in a new strategy with `snapshot_seconds=` or `replicas=1`.",
            task_name(SERVER, server),
        )
        self._client.lose(server, error)
        raise error

    def _count_lost(self, server: int, clock: int, applied: np.ndarray) -> int:
        """The number of ended closures whose updates the restored server does not have."""
        ended = self._ended.get(server, {})
        known = set(applied.tolist())
        left = [closure for closure in ended if closure in known]
        lost = len(ended) - len(left)
        if lost == _REMEMBERED:  # at least as many as are remembered: the clocks tell
            lost = max(lost, self._clocks[server] - clock)
        self._ended[server] = dict.fromkeys(left)
        self._clocks[server] = clock
        return lost

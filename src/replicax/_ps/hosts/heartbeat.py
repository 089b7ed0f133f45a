"""`Heartbeat`: whether servers and workers still answer, even those that nobody talks to.

A dead process is noticed by whoever talks to it: its connections break. A stopped one, or one whose
machine is gone, is only silent. A busy one answers, because a ping has its own connection.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, final

from replicax._control import Limits, Ticks
from replicax._core.errors import UnavailableError
from replicax._net import ConnectionLost, Refused, RemoteError, RequestClient

if TYPE_CHECKING:
    from replicax._net import Message
    from replicax._ps.hosts.cluster import Cluster, Member

logger = logging.getLogger("replicax")

Dial = Callable[[Sequence[str]], RequestClient]
OnSilence = Callable[[str, int], None]
_FAILURES = (ConnectionLost, Refused, RemoteError, UnavailableError, OSError)


@final
class Heartbeat:
    """Pings every member once a beat, from one thread.

    `dial` connects to a member without telling it anything, which it may be too busy for.
    `on_silence` is called with the role and number of a member that was silent for too long.
    """

    def __init__(self, cluster: Cluster, dial: Dial, limits: Limits, on_silence: OnSilence) -> None:
        self._cluster, self._dial, self._limits = cluster, dial, limits
        self._on_silence = on_silence
        self._over = threading.Event()
        self._pings: dict[tuple[str, int], _Pings] = {}

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="replicax-heartbeat", daemon=True).start()

    def close(self) -> None:
        """Stop asking."""
        self._over.set()

    def staleness(self) -> Counter[int]:
        """The numbers of gradients by lateness in updates, as the servers last told."""
        found = Counter[int]()
        for (role, _), pings in list(self._pings.items()):
            if role == "server":
                found.update(pings.late)
        return found

    def _run(self) -> None:
        ticks = Ticks(self._limits.beat)
        while not self._over.is_set():
            passed = ticks.tick()
            self._meet()
            for (role, index), pings in self._pings.items():
                if pings.beat(passed) >= self._limits.silence and not self._over.is_set():
                    self._declare_dead(role, index)
                    pings.close()
            self._over.wait(self._limits.beat)
        for pings in self._pings.values():
            pings.close()

    def _meet(self) -> None:
        """Ask members that have joined since, too."""
        counts = {"server": self._cluster.num_servers, "worker": self._cluster.num_workers}
        for role, count in counts.items():
            for index in range(count):
                if (role, index) not in self._pings:
                    place = functools.partial(
                        self._cluster.member, role, index, timeout=self._limits.beat
                    )
                    pings = _Pings(place, self._dial, self._limits.beat, self._over)
                    self._pings[role, index] = pings

    def _declare_dead(self, role: str, index: int) -> None:
        logger.warning(
            "The %s %d has not answered for %g seconds: it is taken for dead and ended.",
            "parameter server" if role == "server" else role,
            index,
            self._limits.silence,
        )
        try:
            self._on_silence(role, index)  # first: later it might refer to the next one
            self._cluster.kill(role, index)
        except Exception:
            logger.exception("It could not be ended.")


@final
class _Pings:
    """The pings to one member. Connecting has a thread of its own, because it may take long."""

    def __init__(
        self, place: Callable[[], Member], dial: Dial, beat: float, over: threading.Event
    ) -> None:
        self._place, self._dial = place, dial
        self._beat, self._over = beat, over
        self.late: dict[int, int] = {}
        self._link: RequestClient | None = None
        self._connecting: threading.Thread | None = None
        self._end: Callable[..., Message] | None = None  # of the ping under way
        self._waits = False
        self._silence = 0.0

    def beat(self, passed: float) -> float:
        """Take the answer if it is there, and ask again; return the seconds without an answer.

        Time without a connection does not count: a dead process is not silent, and one that comes
        back takes its time.
        """
        self._silence += passed * self._waits
        try:
            if self._link is None:
                self._begin_to_connect()
            elif self._end is None or self._link.is_answered():
                self._ask(self._link)
        except _FAILURES:
            self.close()
        return self._silence

    def close(self) -> None:
        """End the connection, and with it a pending question."""
        link, self._link = self._link, None
        end, self._end = self._end, None
        self._waits, self._silence = False, 0.0
        if end is not None:
            with suppress(*_FAILURES):
                end(timeout=0.0)
        if link is not None:
            link.close()

    def _ask(self, link: RequestClient) -> None:
        end, self._end = self._end, None
        if end is not None:
            self.late = dict(end(timeout=self._beat).head["staleness"])
            self._silence = 0.0
        self._end, self._waits = link.begin("ping"), True

    def _begin_to_connect(self) -> None:
        if self._connecting is None or not self._connecting.is_alive():
            self._connecting = threading.Thread(
                target=self._connect, name="replicax-heartbeat-connects", daemon=True
            )
            self._connecting.start()

    def _connect(self) -> None:
        link, began = None, time.monotonic()
        with suppress(*_FAILURES):
            member = self._place()
            self._waits = True
            link = self._dial(member.addresses)
        if link is None:
            self._waits = False
            if time.monotonic() - began < self._beat:  # refused at once
                self._silence = 0.0
        elif self._over.is_set():
            link.close()
        self._link = link

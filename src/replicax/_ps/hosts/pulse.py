"""`Pulse`: whether servers and workers still answer, even those that nobody talks to.

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
from contextlib import closing, suppress
from typing import TYPE_CHECKING, final

from replicax._control import Limits, Ticks
from replicax._core.errors import UnavailableError
from replicax._net import ConnectionLost, Refused, RemoteError, RequestClient

if TYPE_CHECKING:
    from replicax._ps.hosts.cluster import Cluster, Member

logger = logging.getLogger("replicax")

Dial = Callable[[Sequence[str]], RequestClient]
OnSilence = Callable[[str, int], None]


@final
class Pulse:
    """Asks every member for a sign of life, again and again.

    `dial` connects to a member without telling it anything, which it may be too busy for.
    `on_silence` is called with the role and number of a member that was silent for too long.
    """

    def __init__(self, cluster: Cluster, dial: Dial, limits: Limits, on_silence: OnSilence) -> None:
        self._cluster, self._dial, self._limits = cluster, dial, limits
        self._on_silence = on_silence
        self._over = threading.Event()
        self._hearts: dict[tuple[str, int], _Heart] = {}

    def start(self) -> None:
        """Start the threads: one that counts, and one that waits for each member's answer."""
        threading.Thread(target=self._run, name="replicax-pulse", daemon=True).start()

    def close(self) -> None:
        """Stop asking."""
        self._over.set()
        for heart in list(self._hearts.values()):
            heart.close()

    def staleness(self) -> Counter[int]:
        """The numbers of gradients by lateness in updates, as the servers last told."""
        found = Counter[int]()
        for (role, _), heart in list(self._hearts.items()):
            if role == "server":
                found.update(heart.late)
        return found

    def _run(self) -> None:
        ticks = Ticks(self._limits.beat)
        while not self._over.is_set():
            self._meet()
            self._over.wait(self._limits.beat)
            passed = ticks.tick()
            for (role, index), heart in list(self._hearts.items()):
                if heart.is_silent(passed, self._limits.silence) and not self._over.is_set():
                    self._declare_dead(role, index, heart)

    def _meet(self) -> None:
        """Ask members that have joined since, too."""
        counts = {"server": self._cluster.num_servers, "worker": self._cluster.num_workers}
        for role, count in counts.items():
            for index in range(count):
                if (role, index) not in self._hearts:
                    place = functools.partial(
                        self._cluster.member, role, index, timeout=self._limits.beat
                    )
                    heart = _Heart(place, self._dial, self._limits.beat, self._over)
                    self._hearts[role, index] = heart
                    name = f"replicax-pulse-{role}-{index}"
                    threading.Thread(target=heart.run, name=name, daemon=True).start()

    def _declare_dead(self, role: str, index: int, heart: _Heart) -> None:
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
        heart.close()


@final
class _Heart:
    """The pings to one member."""

    def __init__(
        self, place: Callable[[], Member], dial: Dial, beat: float, over: threading.Event
    ) -> None:
        self._place, self._dial = place, dial
        self._beat, self._over = beat, over
        self._lock = threading.Lock()
        self._link: RequestClient | None = None
        self.late: dict[int, int] = {}
        self._waits = False
        self._silence = 0.0
        self._began = 0.0  # the last attempt

    def is_silent(self, passed: float, limit: float) -> bool:
        """Count how long the member has left a question open; return whether that is too long.

        Time without a connection does not count: a dead process is not silent, and one that comes
        back takes its time.
        """
        with self._lock:
            if self._waits:
                self._silence += passed
            if self._silence < limit:
                return False
            self._silence = 0.0
            return True

    def run(self) -> None:
        """Ask until this is closed."""
        while not self._over.is_set():
            self._began = time.monotonic()
            with suppress(ConnectionLost, Refused, RemoteError, UnavailableError, OSError):
                member = self._place()
                self._wait(True)
                with closing(self._dial(member.addresses)) as link:
                    self._ask(link)
            is_gone = time.monotonic() - self._began < self._beat  # refused at once
            with self._lock:
                self._link, self._waits = None, False
                self._silence = 0.0 if is_gone else self._silence
            self._over.wait(self._beat)

    def close(self) -> None:
        """End the connection, and with it a pending question."""
        with self._lock:
            link = self._link
        if link is not None:
            link.close()

    def _ask(self, link: RequestClient) -> None:
        with self._lock:
            self._link = link
        while not self._over.is_set():
            self._began = time.monotonic()
            self._wait(True)
            self.late = dict(link.call("ping").head["staleness"])
            self._wait(False)
            self._over.wait(self._beat)

    def _wait(self, waits: bool) -> None:
        with self._lock:
            self._waits = waits
            if not waits:
                self._silence = 0.0

"""Connecting to members: who they are, whether they still answer, and how they are told to end.

A cluster whose processes somebody else starts learns from this who listens where.

`RX_TLS_CERT` and `RX_TLS_KEY` are files with a member's certificate and key; `RX_TLS_CA` is the
file with the authority that all of them are signed by. The secret says who may talk; TLS keeps
others from listening. Unix sockets and shared memory are not encrypted: they do not leave the host.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import secrets
import signal
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

from replicax._control import Limits, Ticks
from replicax._core.env import RX_TLS, setting
from replicax._core.errors import ClusterSpecError, UnavailableError
from replicax._net import ConnectionLost, Refused, RemoteError, RequestClient
from replicax._ps.hosts.cluster import place_of

if TYPE_CHECKING:
    from replicax._net import Message
    from replicax._ps.hosts.cluster import Cluster, Member

PATIENCE = 10.0  # seconds to establish a connection

ABOUT, GOODBYE = "about", "goodbye"
logger = logging.getLogger("replicax")

Dial = Callable[[Sequence[str]], RequestClient]
OnSilence = Callable[[str, int], None]
_FAILURES = (ConnectionLost, Refused, RemoteError, UnavailableError, OSError)


def server_context() -> ssl.SSLContext | None:
    """The encryption of a listener; None without it."""
    if files := _files():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files[0], files[1])
        return context
    return None


def client_context() -> ssl.SSLContext | None:
    """The encryption of a link and the certificates it accepts; None without it."""
    if files := _files():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Certificates do not name the members' addresses; membership is proved by the authority
        # and by the secret.
        context.check_hostname = False
        context.load_verify_locations(files[2])
        return context
    return None


def _files() -> list[str] | None:
    found = {name: setting(name) for name in RX_TLS}
    if not any(found.values()):
        return None
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise ClusterSpecError(
            f"TLS has no {' and no '.join(missing)}. Set RX_TLS_CERT, RX_TLS_KEY and RX_TLS_CA for "
            "every process, or none of them."
        )
    return [*found.values()]


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
        with suppress(ConnectionLost, RemoteError, OSError), closing(self.bare(addresses)) as link:
            link.call("ping", timeout=PATIENCE)
            return True
        return False


class About(NamedTuple):
    """The member that listens at an address: a "server" or "worker"."""

    role: str
    index: int
    life: str  # no other process has it, nor this one when started again
    addresses: tuple[str, ...]
    process: int  # its number, on its machine
    began: str  # by its kernel's clock; empty if it does not say


@final
class Presence:
    """The member's side: its answers, and how long it stays."""

    def __init__(self, role: str, index: int) -> None:
        self.addresses: tuple[str, ...] = ()  # known once it listens
        self._who = (role, index)
        self._life = secrets.token_hex(8)
        self.has_left = threading.Event()
        self.is_over = False  # set by a goodbye

    def answer(self, op: str) -> dict[str, Any]:
        if op == GOODBYE:
            self.is_over = True
            self.has_left.set()
            return {}
        process = os.getpid()
        role, index = self._who
        about = About(role, index, self._life, self.addresses, process, beginning_of(process))
        return about._asdict()


def ask_about(address: str, secret: bytes, *, timeout: float) -> About:
    """Ask which member listens at an address, which has its place.

    `ConnectionLost` if nobody answers, `Refused` if it has another secret, or another place.
    """
    about = _ask(address, secret, ABOUT, timeout)
    return About(**{**about, "addresses": tuple(about["addresses"])})


def say_goodbye(address: str, secret: bytes, *, timeout: float) -> None:
    """Tell the member at an address to end.

    `ConnectionLost` if nobody answers, `Refused` if it has another secret.
    """
    _ask(address, secret, GOODBYE, timeout)


def kill(about: About) -> bool:
    """Kill the process of a member, if it is on this machine and still the same.

    Its number alone could belong to another process by now, or to one of another container. Returns
    whether there was such a process.
    """
    if not about.began or not hasattr(os, "pidfd_open"):
        return False
    with suppress(OSError):
        handle = os.pidfd_open(about.process)  # from here on no other process gets the number
        try:
            if beginning_of(about.process) == about.began:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def beginning_of(process: int) -> str:
    """The start of a process in ticks since boot; empty if the system does not say."""
    with suppress(OSError):
        # The name, in parentheses, may hold anything; the start is the 20th field after it.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _ask(address: str, secret: bytes, op: str, timeout: float) -> dict[str, Any]:
    # A stopped process still accepts connections, but never answers.
    link = RequestClient.connect([address], secret, timeout=timeout, tls=client_context())
    with closing(link):
        return link.call(op, timeout=timeout).head


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
        threading.Thread(target=self._run, name="replicax-heartbeat", daemon=True).start()

    def close(self) -> None:
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

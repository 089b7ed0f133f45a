"""Connecting to members; how a member tells who it is, and how it is told to end.

A cluster whose processes somebody else starts learns from this who listens where.

`RX_TLS_CERT` and `RX_TLS_KEY` are files with a member's certificate and key; `RX_TLS_CA` is the
file with the authority that all of them are signed by. The secret says who may talk; TLS keeps
others from listening. Unix sockets and shared memory are not encrypted: they do not leave the host.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import signal
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

from replicax._core.env import tls_files
from replicax._core.errors import ClusterSpecError
from replicax._net import ConnectionLost, RemoteError, RequestClient
from replicax._ps.hosts.cluster import place_of

PATIENCE = 10.0  # seconds to establish a connection

ABOUT, GOODBYE = "about", "goodbye"


def server_context() -> ssl.SSLContext | None:
    """The encryption of a listener; None without it."""
    files = _files()
    if files is None:
        return None
    cert, key, _ = files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def client_context() -> ssl.SSLContext | None:
    """The encryption of a link and the certificates it accepts; None without it."""
    files = _files()
    if files is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Certificates do not name the members' addresses; membership is proved by the authority
    # and by the secret.
    context.check_hostname = False
    context.load_verify_locations(files[2])
    return context


def _files() -> tuple[str, str, str] | None:
    found = tls_files()
    if not any(found.values()):
        return None
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise ClusterSpecError(
            f"TLS has no {' and no '.join(missing)}. Set RX_TLS_CERT, RX_TLS_KEY and RX_TLS_CA for "
            "every process, or none of them."
        )
    cert, key, authority = found.values()
    return cert, key, authority


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
        self._left = threading.Event()
        self.is_over = False  # set by a goodbye

    def answer(self, op: str) -> dict[str, Any] | None:
        """Answer a request of this kind; None for any other."""
        if op == GOODBYE:
            self.is_over = True
            self.leave()
            return {}
        if op != ABOUT:
            return None
        process = os.getpid()
        role, index = self._who
        about = About(role, index, self._life, self.addresses, process, beginning_of(process))
        return about._asdict()

    def leave(self) -> None:
        """End: let `wait` return."""
        self._left.set()

    def wait(self) -> None:
        """Wait for a goodbye or for `leave`."""
        self._left.wait()


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

"""How a member tells who it is, and how it is told to end: both sides.

A cluster whose processes somebody else starts learns from this who listens where.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple, final

from replicax._net import RequestClient
from replicax._ps.hosts.encryption import client_context

ABOUT, GOODBYE = "about", "goodbye"


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

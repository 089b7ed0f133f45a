"""A worker that has connected to the hub, and whom the hub does not admit."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import final

from replicax._core.errors import ClusterError
from replicax._net import Caller, Denied, Outbox, encode, printable

_SIGN_OF_LIFE = 2.0  # seconds that a worker has to show that it lives
_PING = encode("ping", {})


@final
class Member:
    """A worker at the hub, from its handshake to the end of its connection.

    The hub pings it before all begin: a host that lost its power does not hang up.
    """

    def __init__(self, process: tuple[str, int]) -> None:
        self.process = process  # its host and pid
        self.wire: Outbox | None = None
        self.is_doubted = False  # another process came with the same number: this may be dead
        self.has_begun = False  # whether it was welcomed; before, it only answers pings
        self._has_left, self._is_asked = False, False
        self._has_answered = threading.Event()

    def connect(self, wire: Outbox) -> None:
        self.wire = wire
        if self._is_asked:
            wire.send(_PING)

    def ask(self) -> None:
        """Send a ping, as soon as it is connected."""
        if not self._has_left:
            self._has_answered.clear()
        self._is_asked = True  # before the look at the wire, which another thread may set now
        if self.wire:
            self.wire.send(_PING)

    def note_answer(self) -> None:
        self._has_answered.set()

    def has_answered(self, deadline: float) -> bool:
        """Whether it answers the ping before the deadline, by `time.monotonic`."""
        answered = self._has_answered.wait(max(0.0, deadline - time.monotonic()))
        return answered and not self._has_left

    def leave(self) -> None:
        """End its connection; whoever waits for an answer goes on at once."""
        self._has_left = True
        self._has_answered.set()
        if self.wire:
            self.wire.hang_up()


def silent(members: Mapping[int, Member]) -> dict[int, Member]:
    """Ping members, all at the same time; returns those that do not answer in time."""
    for member in members.values():
        member.ask()
    deadline = time.monotonic() + _SIGN_OF_LIFE
    return {index: member for index, member in members.items() if not member.has_answered(deadline)}


def number_of(caller: Caller, size: int) -> int:
    """The number that a caller claims; `Denied` if there is no such worker."""
    index = caller.hello.get("index")
    if type(index) is not int or not 0 < index < size:
        raise Denied(
            f"the chief has {size} workers, and none with the number {str(index)[:20]}. Start all "
            f"with the same description, each with its own number, from 0 to {size - 1}."
        )
    return index


def process_of(caller: Caller) -> tuple[str, int]:
    """The host and process id that a caller claims; only for messages."""
    host, pid = caller.hello.get("host"), caller.hello.get("pid")
    return printable(host, 80), pid if type(pid) is int else 0


def is_double(index: int, there: tuple[str, int], new: tuple[str, int]) -> Denied:
    """The refusal of a second worker with the same number."""
    (host, pid), (its_host, its_pid) = there, new
    return Denied(
        f"worker {index} on host {its_host}, pid {its_pid}, and this one is there already: host "
        f"{host}, pid {pid}. Give each worker a number of its own; if the first one is left from "
        "an earlier start, end it."
    )


def incomplete(missing: str, index: int) -> ClusterError:
    """The error if not all workers come."""
    return ClusterError(
        f"{f'Worker {index}' if index else 'The chief'} cannot start without all workers: "
        f"{missing}. See their output; if they cannot reach the chief, open the port between "
        "the machines."
    )

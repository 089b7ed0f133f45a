"""Where workers first meet: at the chief's address, the one thing that all of them know.

The chief says how to reach its channel, and gives the port free again, for JAX's own service.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, final

from replicax._control._ending import print_notice
from replicax._control._message import listed
from replicax._control._wire import BROKEN, Wire, encode
from replicax._core.errors import ClusterError
from replicax._net import (
    Caller,
    Connection,
    Denied,
    Door,
    check_host,
    interface_of,
    introduce,
    own,
    printable,
    tune,
)

if TYPE_CHECKING:
    from replicax._net import Secret

CHIEF = "the chief of {} workers"  # its place in the cluster
_PAUSE = 0.1  # seconds between two tries to reach a chief that is not there yet
_FIRST_PAUSE = 0.005
_NOTICE = 30.0  # seconds after which somebody who waits says so
_NAME_NOTICE = 5.0  # the same where the chief's name is not known
_NAME_PATIENCE = 60.0  # seconds until the name must be known: that of a pod comes with the pod
_PATIENCE = 10.0  # seconds to say who one is
_GRACE = 5.0  # seconds that workers give the chief, so that it is the one who says who is missing
_SIGN_OF_LIFE = 2.0  # seconds that a worker has to show that it lives when another takes its number
_HANGING_UP = 1.0  # seconds that workers have to take the offer
_TRIES = (
    5  # of a connection that ends in the handshake: a crowd of strangers may have pushed it out
)


def meet(
    address: str,
    index: int,
    size: int,
    *,
    seconds: float,
    offer: Mapping[str, Any] | None,
    secret: Secret | None = None,
) -> dict[str, Any]:
    """Wait until all workers of a cluster are there; give them what the chief offers.

    Args:
        address: `host:port` of the chief.
        index: The number of this worker; 0 is the chief.
        size: How many workers there are.
        seconds: How long to wait.
        offer: What the chief tells all; the others' is ignored.
        secret: What the cluster's processes know; None if it has none.

    Returns:
        The chief's offer.

    Raises:
        ClusterError: If not all come in time, or they were started for different clusters.
        Refused: If one has another secret.
    """
    host, port = split(address)
    check_host(host)
    deadline = time.monotonic() + seconds
    if index == 0:
        _Hall(size, secret).gather(host, port, deadline, dict(offer or {}))
        return dict(offer or {})
    return _ask_chief((host, port), index, size, deadline, secret)


def split(address: str) -> tuple[str, int]:
    """The host, without the brackets of IPv6, and the port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def number_of(caller: Caller, size: int) -> int:
    """The number that a worker says it has.

    Raises:
        Denied: If no worker has it.
    """
    index = caller.hello.get("index")
    if type(index) is not int or not 0 < index < size:
        raise Denied(
            f"worker {str(index)[:20]}, at a chief of {size} workers. Start all workers with the "
            "same description, each with its own number, below their count."
        )
    return index


def hello(index: int) -> dict[str, Any]:
    """What a worker says of itself."""
    return {"index": index, "host": socket.gethostname(), "pid": os.getpid()}


def process_of(caller: Caller) -> tuple[str, int]:
    """The host and the process id that a worker says it has; only for messages."""
    host, pid = caller.hello.get("host"), caller.hello.get("pid")
    return printable(host, 80), pid if type(pid) is int else 0


def is_double(index: int, there: tuple[str, int], new: tuple[str, int]) -> Denied:
    """The refusal of a second worker with the same number."""
    (host, pid), (its_host, its_pid) = there, new
    return Denied(
        f"worker {index} on host {its_host}, pid {its_pid}, and this one is there already: host "
        f"{host}, pid {pid}. Two would do the work of one. Give each worker a number of its own; "
        "if the first is of an earlier start, end it."
    )


@final
class _Guest:
    """A worker that waits at the chief."""

    def __init__(self, caller: Caller) -> None:
        self.process = process_of(caller)
        self.wire: Wire | None = None
        self.is_doubted = False  # another has come with its number: it may be dead
        self._is_connected, self._has_answered = threading.Event(), threading.Event()

    def connect(self, wire: Wire) -> None:
        self.wire = wire
        self._is_connected.set()

    def listen(self) -> None:
        """Hear what it says until it hangs up."""
        assert self.wire
        with suppress(*BROKEN):
            while True:
                self.wire.receive(small=True)
                self._has_answered.set()
        self.wire.close()

    def is_alive(self) -> bool:
        """Whether it answers: a host that lost its power does not say that it is gone."""
        if not self._is_connected.wait(_SIGN_OF_LIFE):
            return False
        self._has_answered.clear()
        assert self.wire
        self.wire.send(encode({"kind": "ping"}))
        return self._has_answered.wait(_SIGN_OF_LIFE)


@final
class _Hall:
    """The chief's end: who has come so far. A worker that hangs up has not come."""

    def __init__(self, size: int, secret: Secret | None) -> None:
        self._size = size
        self._guests: dict[int, _Guest] = {}
        self._changed = threading.Condition()
        self._door = Door(
            secret, CHIEF.format(size), self._serve, admit=self._admit, patience=_PATIENCE
        )

    def gather(self, host: str, port: int, deadline: float, offer: dict[str, Any]) -> None:
        """Wait until all are there, and tell them the offer."""
        try:
            self._door.listen(interface_of(host), port)
        except OSError as error:
            raise ClusterError(
                "The chief listens at its own address. "
                f"Received: port {port}: {error.strerror}. Another program, or another run, uses "
                "it. End that one, or give the chief another port in the description of the "
                "cluster."
            ) from error
        try:
            self._door.open()
            self._wait(port, deadline)
            self._tell({"kind": "offer", "offer": offer})
        finally:
            self._door.shut()
            with self._changed:  # whoever hangs up has read all
                self._changed.wait_for(lambda: not self._guests, _HANGING_UP)
            self._door.close()

    def _wait(self, port: int, deadline: float) -> None:
        began = time.monotonic()
        with self._changed:
            if self._changed.wait_for(self._is_complete, min(_NOTICE, deadline - began)):
                return
            if time.monotonic() < deadline:
                missing = listed(self._missing())
                print_notice(f"the chief still waits for {missing} at port {port}")
            if self._changed.wait_for(self._is_complete, deadline - time.monotonic()):
                return
            missing = self._missing()
        self._tell({"kind": "missing", "workers": missing})
        raise ClusterError(
            "All workers of a cluster must start. "
            f"Received: nothing from {listed(missing)} in {time.monotonic() - began:.0f} s at port "
            f"{port}; this is the chief. Nobody can begin without all. Look at what they print; if "
            "they say that they cannot reach this machine, open the port between the machines."
        )

    def _missing(self) -> list[int]:
        guests = self._guests.items()
        here = {index for index, guest in guests if guest.wire and not guest.is_doubted}
        return [index for index in range(1, self._size) if index not in here]

    def _is_complete(self) -> bool:
        return not self._missing()

    def _tell(self, header: dict[str, Any]) -> None:
        with self._changed:
            for guest in self._guests.values():
                if guest.wire:
                    guest.wire.send(encode(header))

    def _admit(self, caller: Caller) -> dict[str, Any]:
        index = number_of(caller, self._size)
        caller.context = guest = _Guest(caller)
        while True:
            with self._changed:
                before = self._guests.setdefault(index, guest)
                before.is_doubted = before is not guest
            if before is guest:
                return {}
            if not before.is_alive():
                self._forget(index, before)
                continue
            with self._changed:
                before.is_doubted = False
                self._changed.notify_all()
            raise is_double(index, before.process, guest.process)

    def _serve(self, connection: Connection) -> None:
        sock, session, caller = connection
        guest: _Guest = caller.context
        guest.connect(Wire(sock, session))
        with self._changed:
            self._changed.notify_all()
        guest.listen()
        self._forget(caller.hello["index"], guest)

    def _forget(self, index: int, guest: _Guest) -> None:
        with self._changed:
            if self._guests.get(index) is guest:
                del self._guests[index]
                self._changed.notify_all()


def _ask_chief(
    address: tuple[str, int], index: int, size: int, deadline: float, secret: Secret | None
) -> dict[str, Any]:
    try:
        wire = _reach(address, index, size, deadline, secret)
        try:
            answer = _heard(wire)
        finally:
            wire.close()
    except BROKEN as error:
        if isinstance(error, ClusterError):
            raise
        raise ClusterError(
            "At the chief's address its workers meet. "
            f"Received: {error!r} from {address[0]}:{address[1]}. Another program listens there, "
            "the chief has ended, or the time is over. See what the chief prints, and whether its "
            "address is right."
        ) from error
    if answer.get("kind") == "missing":
        raise ClusterError(
            "All workers of a cluster must start. "
            f"Received: nothing from {listed(answer['workers'])}; this is worker {index}. Nobody "
            "can begin without all. Look at what they print, and whether they reach the chief."
        )
    return answer["offer"]


def _heard(wire: Wire) -> dict[str, Any]:
    """What the chief says in the end; until then it may ask whether this worker lives."""
    while (answer := wire.receive().header).get("kind") == "ping":
        wire.send(encode({"kind": "here"}))
    return answer


def _reach(
    address: tuple[str, int], index: int, size: int, deadline: float, secret: Secret | None
) -> Wire:
    """Be let in by a chief that may not have started yet."""
    tries = 0
    while True:
        sock = _connect(address, index, deadline)
        tries += 1
        try:
            return dial(
                sock,
                secret,
                place=f"worker {index}",
                wanted=CHIEF.format(size),
                hello=hello(index),
                peer=f"the chief at {address[0]}:{address[1]}",
                deadline=min(deadline, time.monotonic() + _PATIENCE) + _GRACE,
                seconds=max(_PAUSE, deadline - time.monotonic()) + _GRACE,
            )
        except (EOFError, ConnectionResetError, BrokenPipeError):
            if tries == _TRIES:
                raise
            time.sleep(_PAUSE)


def dial(sock: socket.socket, secret: Secret | None, *, seconds: float | None, **who: Any) -> Wire:
    """Make a wire of a connection, once both ends know who is there.

    Args:
        sock: The connection; it is closed if this raises.
        secret: What the cluster's processes know.
        seconds: How long an answer may take; None for no limit.
        **who: What `introduce` takes.
    """
    with ExitStack() as kept:
        kept.enter_context(sock)
        session, _ = introduce(tune(own(sock)), secret, **who)
        sock.settimeout(seconds)
        kept.pop_all()
    return Wire(sock, session)


def _connect(address: tuple[str, int], index: int, deadline: float) -> socket.socket:
    began, told, named = time.monotonic(), False, time.monotonic()
    where = f"{address[0]}:{address[1]}"
    while True:
        now = time.monotonic()
        try:
            return _connected(address, max(_PAUSE, min(10.0, deadline - now)))
        except socket.gaierror as error:
            if now >= min(deadline, named + _NAME_PATIENCE):
                raise ClusterError(
                    "The chief's address names a machine that its workers can find. "
                    f"Received: {address[0]!r}, which no name service has known for "
                    f"{now - named:.0f} s ({error.strerror}); this is worker {index}. Correct the "
                    "name in the description of the cluster, or see whether that machine, or pod, "
                    "has started."
                ) from error
            if now - began > _NAME_NOTICE and not told:
                told = True
                print_notice(f"worker {index} does not find the chief's host name {address[0]!r}")
        except OSError as error:
            named = now
            if now >= deadline:
                raise ClusterError(
                    "Every worker has to reach the chief by TCP. "
                    f"Received: {error} at {where} for {now - began:.0f} s. It may not run, its "
                    "address may be wrong, or a firewall closes the port. Start it, and look "
                    "whether this machine reaches that address."
                ) from error
            if now - began > _NOTICE and not told:
                told = True
                print_notice(f"worker {index} still cannot reach the chief at {where}")
        _pause(now - began)


def wait_until_open(address: str, seconds: float) -> None:
    """Wait until somebody listens at `host:port`, or the time is over: then others say so."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < seconds:
        with suppress(OSError):
            _connected(split(address), seconds - waited).close()
            return
        _pause(waited)


def _connected(address: tuple[str, int], seconds: float) -> socket.socket:
    with ExitStack() as kept:
        sock = kept.enter_context(socket.create_connection(address, seconds))
        # Where nobody listens on this machine, TCP may take that port as its own, and find itself.
        if sock.getsockname() == sock.getpeername():
            raise ConnectionRefusedError("nobody listens there")
        kept.pop_all()
    return sock


def _pause(waited: float) -> None:
    """Who was started together with us comes soon; who is late may be later."""
    time.sleep(min(_PAUSE, _FIRST_PAUSE + waited / 10))

"""The rendezvous of workers at the chief's address, which all of them know.

The chief announces the address of its channel, and then frees the port for JAX's service. Workers
try again until it listens; a proxy may accept and hang up before.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, final

from replicax._control._ending import print_notice
from replicax._control._watchdog import listed
from replicax._core.env import RX_SECOND_PORT
from replicax._core.errors import ClusterError
from replicax._net import (
    BROKEN,
    Accepted,
    Caller,
    Denied,
    Forged,
    Listener,
    Message,
    Outbox,
    check_host,
    encode,
    in_cluster,
    interface_of,
    introduce,
    own,
    printable,
    tries,
    tune,
)

if TYPE_CHECKING:
    from replicax._net import Secret


PATIENCE = 10.0  # seconds for the handshake
_SHORTEST = 0.1  # seconds for one connection
NOTICE = 30.0  # seconds of waiting after which a notice is printed
_NAME_NOTICE = 10.0  # the same if the chief's name does not resolve: a pod's name comes with it
_OF_SECOND_PORT = (
    " That is the chief's second port. The system chooses it, unless the chief's "
    f"{RX_SECOND_PORT} does: set that to a port that the firewall lets pass."
)
_GRACE = 5.0  # seconds that workers wait longer than the chief, which knows who is missing


def split(address: str) -> tuple[str, int]:
    """The host, without the brackets of IPv6, and the port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def reach(
    address: tuple[str, int],
    secret: Secret | None,
    *,
    index: int,
    wanted: str,
    hello: dict[str, Any],
    deadline: float,
    has_started: bool = False,
) -> Outbox:
    """Connect to the chief, with retries until the deadline, by `time.monotonic`.

    `wanted` is the place that the other end must have; `hello` has the fields about this worker.
    `has_started` means that the chief already listens, at its second port, so that a refused
    connection means that it is gone.
    """
    began, is_told, last = time.monotonic(), False, None
    for left in tries(deadline - began):
        now = time.monotonic()
        try:
            return dial(
                _connected(address, max(_SHORTEST, min(PATIENCE, left))),
                secret,
                place=f"worker {index}",
                wanted=wanted,
                hello=hello,
                peer=f"the chief at {address[0]}:{address[1]}",
                deadline=now + min(left, PATIENCE) + _GRACE,
                seconds=left + _GRACE,
            )
        except ClusterError:
            raise
        except (OSError, EOFError) as error:
            last = error
        if has_started and isinstance(last, ConnectionRefusedError):
            break  # it is gone
        patience = _NAME_NOTICE if isinstance(last, socket.gaierror) else NOTICE
        if now - began > patience and not is_told:
            is_told = True
            print_notice(
                f"worker {index} still cannot reach the chief at {address[0]}:{address[1]}: "
                f"{_reason(last)}"
            )
    assert last
    raise unreached(address, index, last, time.monotonic() - began, is_second=has_started) from last


def dial(sock: socket.socket, secret: Secret | None, *, seconds: float, **who: Any) -> Outbox:
    """Authenticate a connection, and make an outbox of it; closes it on an error."""
    with ExitStack() as kept:
        kept.enter_context(sock)
        session, _ = introduce(tune(own(sock)), secret, **who)
        sock.settimeout(seconds)
        kept.pop_all()
    return Outbox(sock, session)


def unreached(
    address: tuple[str, int],
    index: int,
    error: Exception,
    seconds: float,
    *,
    is_second: bool = False,
) -> ClusterError:
    """The error if the chief does not answer, at its address or its second port."""
    if isinstance(error, socket.gaierror):
        return ClusterError(
            f"Worker {index} cannot find the chief's host {address[0]!r}: no name service has "
            f"known it for {seconds:.0f} s ({error.strerror}). Correct the name in the "
            "description of the cluster, or check that this machine or pod has started."
        )
    return ClusterError(
        f"Worker {index} cannot reach the chief: {_reason(error)} at {address[0]}:{address[1]} for "
        f"{seconds:.0f} s. Check that the chief runs, that no other program has this address, and "
        f"that no firewall closes the port.{_OF_SECOND_PORT if is_second else ''}"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "no name service knows its host's name"
    if isinstance(error, EOFError):
        return "a connection that ended without an answer"
    return str(error) or "no answer in time"


def wait_until_open(address: str, seconds: float) -> None:
    """Wait until a process listens at `host:port`; gives up silently after `seconds`."""
    for left in tries(seconds):
        with suppress(OSError):
            _connected(split(address), max(_SHORTEST, left)).close()
            return


def _connected(address: tuple[str, int], seconds: float) -> socket.socket:
    with ExitStack() as kept:
        sock = kept.enter_context(socket.create_connection(address, seconds))
        # On this machine, TCP may choose the port itself as its source, and connect to itself.
        if sock.getsockname() == sock.getpeername():
            raise ConnectionRefusedError("nobody listens there")
        kept.pop_all()
    return sock


CHIEF = "the chief of {} workers"  # its place in the cluster
_SIGN_OF_LIFE = 2.0  # seconds that a worker has to show that it lives
_SMALL = 4096  # bytes of a message of a worker
_HANGING_UP = 1.0  # seconds that workers have to leave once all is said


@contextmanager
def meet(
    address: str,
    index: int,
    size: int,
    offer: Mapping[str, Any] | None,
    *,
    seconds: float,
    cluster: str = "",
    secret: Secret | None = None,
    on_leaving: Callable[[int], None] = lambda index: None,
) -> Generator[dict[str, Any], None, None]:
    """Wait until all workers of a cluster are connected; yields the chief's `offer` to all.

    Connections last until the context ends: a worker that hangs up within it is lost, and
    `on_leaving` is called on the chief with its number. `address` is `host:port` of the chief.
    `cluster` is a name that all processes prove to each other, because several clusters of a user
    may have one `secret`.

    Raises `ClusterError` if not all workers come within `seconds`, or were started for different
    clusters, and `Refused` if one has another secret or belongs to another cluster.
    """
    host, port = split(address)
    check_host(host)
    deadline = time.monotonic() + seconds
    chief = in_cluster(CHIEF.format(size), cluster)
    if index == 0:
        rendezvous = _Rendezvous(size, secret, chief, on_leaving)
        with rendezvous.gathered(host, port, deadline, dict(offer or {})):
            yield dict(offer or {})
        return
    wire, offered = join((host, port), index, chief, deadline, secret)
    try:
        yield offered.head
    finally:
        wire.close()


def number_of(caller: Caller, size: int) -> int:
    """The number that a caller claims; `Denied` if there is no such worker."""
    index = caller.hello.get("index")
    if type(index) is not int or not 0 < index < size:
        raise Denied(
            f"worker {str(index)[:20]}, at a chief of {size} workers. Start all workers with the "
            "same description, each with its own number, below their count."
        )
    return index


def hello(index: int) -> dict[str, Any]:
    """The fields that a worker sends about itself."""
    return {"index": index, "host": socket.gethostname(), "pid": os.getpid()}


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
        f"{missing}. See what they print; if they cannot reach the chief, open the port between "
        "the machines."
    )


@final
class _Arrival:
    """A worker that waits at the chief."""

    # The chief pings it before all begin: a host that lost its power does not hang up.

    def __init__(self, caller: Caller) -> None:
        self.process = process_of(caller)
        self.wire: Outbox | None = None
        self.is_doubted = False  # another process came with the same number: this may be dead
        self._is_connected, self._has_answered = threading.Event(), threading.Event()

    def connect(self, wire: Outbox) -> None:
        self.wire = wire
        self._is_connected.set()

    def listen(self) -> None:
        """Read its messages until it hangs up."""
        assert self.wire
        with suppress(*BROKEN):
            while True:
                self.wire.receive()
                self._has_answered.set()
        self.wire.close()

    def ask(self) -> None:
        """Send a ping."""
        self._has_answered.clear()
        if self.wire:
            self.wire.send(encode("ping", {}))

    def has_answered(self) -> bool:
        """Whether it answers the ping in time."""
        return self._has_answered.wait(_SIGN_OF_LIFE)

    def is_alive(self) -> bool:
        """Ping it as soon as it is connected, and wait for the answer."""
        if not self._is_connected.wait(_SIGN_OF_LIFE):
            return False
        self.ask()
        return self.has_answered()


@final
class _Rendezvous:
    """The chief's side of the meeting: the workers that are connected."""

    def __init__(
        self, size: int, secret: Secret | None, place: str, on_leaving: Callable[[int], None]
    ) -> None:
        self._size = size
        self._on_leaving = on_leaving
        self._arrivals: dict[int, _Arrival] = {}
        self._lost: dict[int, _Arrival] = {}
        self._has_begun = False
        self._changed = threading.Condition()
        self._listener = Listener(secret, place, self._serve, admit=self._admit, patience=PATIENCE)

    @contextmanager
    def gathered(
        self, host: str, port: int, deadline: float, offer: dict[str, Any]
    ) -> Generator[None, None, None]:
        """Wait until all workers are connected, and send them the offer."""
        try:
            self._listener.listen(interface_of(host), port)
        except OSError as error:
            raise ClusterError(
                f"The chief cannot listen at port {port}: {error.strerror}. End the program or the "
                "earlier run that uses it, or give the chief another port in the description of "
                "the cluster."
            ) from error
        try:
            self._listener.open()
            self._wait(port, deadline)
            while silent := self._silent():
                for index, arrival in silent:
                    self._forget(index, arrival)
                self._wait(port, deadline)
            self._listener.shut()
            self._begin(offer)
            yield
        finally:
            self._listener.shut()
            with self._changed:  # a worker hangs up after it has read the offer
                self._changed.wait_for(lambda: not self._arrivals, _HANGING_UP)
            self._listener.close()

    def _wait(self, port: int, deadline: float) -> None:
        began = time.monotonic()
        with self._changed:
            if self._changed.wait_for(self._is_complete, min(NOTICE, deadline - began)):
                return
            if time.monotonic() < deadline:
                missing = listed(self._missing())
                print_notice(f"the chief still waits for {missing} at port {port}")
            if self._changed.wait_for(self._is_complete, deadline - time.monotonic()):
                return
            missing = f"{self._missing_text()} in {time.monotonic() - began:.0f} s at port {port}"
            self._tell("missing", {"who": missing})
        raise incomplete(missing, 0)

    def _missing_text(self) -> str:
        """Which workers are missing, in words."""
        missing = self._missing()
        never = [index for index in missing if index not in self._lost]
        lost = [
            f"worker {index} (host {one.process[0]}, pid {one.process[1]}) came and was lost"
            for index, one in sorted(self._lost.items())
            if index in missing
        ]
        return ", ".join([*([f"nothing from {listed(never)}"] if never else []), *lost])

    def _silent(self) -> list[tuple[int, _Arrival]]:
        """The workers that do not answer a ping, though they are connected."""
        with self._changed:
            arrivals = list(self._arrivals.items())
        for _, arrival in arrivals:
            arrival.ask()
        return [(index, arrival) for index, arrival in arrivals if not arrival.has_answered()]

    def _begin(self, offer: dict[str, Any]) -> None:
        with self._changed:
            self._has_begun = True
            missing = self._missing()  # left since the ping
            self._tell("offer", offer)
        for index in missing:
            self._on_leaving(index)

    def _missing(self) -> list[int]:
        arrivals = self._arrivals.items()
        here = {index for index, arrival in arrivals if arrival.wire and not arrival.is_doubted}
        return [index for index in range(1, self._size) if index not in here]

    def _is_complete(self) -> bool:
        return not self._missing()

    def _tell(self, op: str, head: dict[str, Any]) -> None:
        for arrival in self._arrivals.values():
            if arrival.wire:
                arrival.wire.send(encode(op, head))

    def _admit(self, caller: Caller) -> dict[str, Any]:
        index = number_of(caller, self._size)
        caller.state["arrival"] = arrival = _Arrival(caller)
        while True:
            with self._changed:
                before = self._arrivals.setdefault(index, arrival)
                before.is_doubted = before is not arrival
            if before is arrival:
                return {}
            if not before.is_alive():
                self._forget(index, before)
                continue
            with self._changed:
                before.is_doubted = False
                self._changed.notify_all()
            raise is_double(index, before.process, arrival.process)

    def _serve(self, accepted: Accepted) -> None:
        sock, session, caller = accepted
        arrival: _Arrival = caller.state["arrival"]
        arrival.connect(Outbox(sock, session, largest=0, largest_head=_SMALL))
        with self._changed:
            self._changed.notify_all()
        arrival.listen()
        self._forget(caller.hello["index"], arrival)

    def _forget(self, index: int, arrival: _Arrival) -> None:
        with self._changed:
            if self._arrivals.get(index) is not arrival:
                return
            del self._arrivals[index]
            self._lost[index] = arrival
            self._changed.notify_all()
        if arrival.wire:
            arrival.wire.close()  # a live worker connects again
        if self._has_begun:
            self._on_leaving(index)


def join(
    address: tuple[str, int],
    index: int,
    wanted: str,
    deadline: float,
    secret: Secret | None,
    *,
    is_second: bool = False,
) -> tuple[Outbox, Message]:
    """Connect to the chief, and wait for its message when all are there.

    Reconnects if the chief is restarted; not at its second port, for which it must be running.
    """
    began = time.monotonic()
    while True:
        wire = reach(
            address,
            secret,
            index=index,
            wanted=wanted,
            hello=hello(index),
            deadline=deadline,
            has_started=is_second,
        )
        try:
            while (answer := wire.receive()).op == "ping":
                wire.send(encode("here", {}))
        except BROKEN as error:
            wire.close()
            if isinstance(error, Forged) or time.monotonic() >= deadline:
                seconds = time.monotonic() - began
                raise unreached(address, index, error, seconds, is_second=is_second) from error
            if not is_second:
                print_notice(f"worker {index} has lost the chief, and waits for it to come again")
            continue
        if answer.op == "missing":
            wire.close()
            raise incomplete(answer.head["who"], index)
        return wire, answer

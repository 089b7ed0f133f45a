"""The rendezvous of workers: the chief listens at its address, which all know, and all connect.

Workers try again until it listens; a proxy may accept and hang up before.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

from replicax._control._channel import ClusterChannel
from replicax._control._ending import end_process, print_notice
from replicax._control._hub import NOTICE, PATIENCE, Hub
from replicax._control._member import incomplete
from replicax._core.errors import ClusterError
from replicax._core.interrupts import uninterrupted
from replicax._net import (
    BROKEN,
    Encoded,
    Forged,
    Message,
    Outbox,
    check_host,
    connected,
    decode,
    encode,
    in_cluster,
    interface_of,
    introduce,
    kept,
    tries,
)

if TYPE_CHECKING:
    from replicax._control._heartbeat import Limits
    from replicax._core.errors import WorkerLost
    from replicax._net import Secret


CHIEF = "the chief of {} workers"  # its place in the cluster
_SHORTEST = 0.1  # seconds for one connection
_NAME_NOTICE = 10.0  # as `NOTICE`, if the chief's name does not resolve: a pod's name comes with it
_GRACE = 5.0  # seconds that workers wait longer than the chief, which knows who is missing


def open_channel(
    index: int,
    size: int,
    address: str,
    *,
    limits: Limits,
    cluster: str = "",
    secret: Secret | None = None,
    on_listening: Callable[[int], object] = lambda port: None,
    on_failure: Callable[[WorkerLost], None] = end_process,
    on_notice: Callable[[str], None] = print_notice,
) -> ClusterChannel:
    """Connect this worker to the others; all workers call this at the same time.

    Returns once all are connected. `address` is `host:port` of the chief, worker 0, which listens
    there; with port 0 the system chooses one, and `on_listening` is called with it. `cluster` is a
    name that all processes prove to each other, because several clusters of a user may have one
    `secret`. `on_failure` is called when a worker is lost; by default this process ends.
    `on_notice` gets the notices of the watchdog, on the chief.

    Raises `ClusterError` if not all workers come in time, or the chief cannot be reached, and
    `Refused` if a worker has another secret or belongs to another cluster.
    """
    host, port = split(address)
    check_host(host)
    place = in_cluster(CHIEF.format(size), cluster)
    if index:
        deadline = time.monotonic() + limits.joining
        wire, welcome = _welcomed((host, port), index, place, deadline, secret)
        channel = ClusterChannel(index, size, link=wire, limits=limits, on_failure=on_failure)
        return _begin(channel, wire, welcome)
    hub = Hub(size, secret, place, limits=limits, on_notice=on_notice)
    try:
        on_listening(_listen(hub, host, port))
        return _join_here(hub, size, limits=limits, on_failure=on_failure)
    except BaseException:
        hub.close()
        raise


def split(address: str) -> tuple[str, int]:
    """The host, without the brackets of IPv6, and the port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(hub: Hub, host: str, port: int) -> int:
    try:
        return hub.listen(interface_of(host), port)
    except OSError as error:
        raise ClusterError(
            f"The chief cannot listen at port {port}: {error.strerror}. End the program or the "
            "earlier run that uses it, or give the chief another port. See docs/clusters.md."
        ) from error


@final
class _LocalLink:
    """The chief's link to the hub in its own process, by direct calls."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._numbers = itertools.count()

    @property
    def received(self) -> int:
        """A new number each time, since the hub lives as long as this process."""
        return next(self._numbers)

    def send(self, message: Encoded) -> None:
        """Hand a message to the hub.

        No signal interrupts it: otherwise only some workers would get the answer.
        """
        with uninterrupted:
            self._hub.take(0, decode(message))

    def hang_up(self) -> None:
        self._hub.close()


def _join_here(
    hub: Hub, size: int, *, limits: Limits, on_failure: Callable[[WorkerLost], None]
) -> ClusterChannel:
    channel = ClusterChannel(
        0,
        size,
        link=_LocalLink(hub),
        limits=limits,
        on_failure=on_failure,
        lateness=hub.lateness,
    )
    here = socket.gethostname(), os.getpid()
    if missing := hub.join_chief(lambda message: channel.take(decode(message)), *here):
        raise incomplete(missing, 0)
    channel.start()
    return channel


def _begin(channel: ClusterChannel, wire: Outbox, welcome: Message) -> ClusterChannel:
    channel.take(welcome)
    wire.start()
    threading.Thread(
        target=_hear, args=(channel, wire), name="replicax-channel", daemon=True
    ).start()
    channel.start()
    return channel


def _hear(channel: ClusterChannel, wire: Outbox) -> None:
    try:
        while True:
            channel.take(wire.receive())
    except Forged:
        wire.send(encode("altered", {}))  # the other direction may still work
        channel.lose_chief("altered")
    except BROKEN:
        channel.lose_chief("died")
    wire.close()


def _welcomed(
    address: tuple[str, int], index: int, wanted: str, deadline: float, secret: Secret | None
) -> tuple[Outbox, Message]:
    """Connect to the chief, and wait for its welcome; reconnects if the chief is restarted."""
    began = time.monotonic()
    hello = {"index": index, "host": socket.gethostname(), "pid": os.getpid()}
    while True:
        wire = reach(address, secret, index=index, wanted=wanted, hello=hello, deadline=deadline)
        try:
            while (answer := wire.receive()).op == "ping":
                wire.send(encode("here", {}))
        except BROKEN as error:
            wire.close()
            if isinstance(error, Forged) or time.monotonic() >= deadline:
                raise _unreached(address, index, error, time.monotonic() - began) from error
            print_notice(f"worker {index} has lost the chief, and waits for it to come again")
            continue
        if answer.op == "missing":
            wire.close()
            raise incomplete(answer.head["who"], index)
        return wire, answer


def reach(
    address: tuple[str, int],
    secret: Secret | None,
    *,
    index: int,
    wanted: str,
    hello: dict[str, Any],
    deadline: float,
) -> Outbox:
    """Connect to the chief, with retries until the deadline, by `time.monotonic`.

    `wanted` is the place that the other end must have; `hello` has the fields about this worker.
    """
    began, is_told, last = time.monotonic(), False, None
    for left in tries(deadline - began):
        now = time.monotonic()
        try:
            return dial(
                connected(*address, max(_SHORTEST, min(PATIENCE, left))),
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
        patience = _NAME_NOTICE if isinstance(last, socket.gaierror) else NOTICE
        if now - began > patience and not is_told:
            is_told = True
            print_notice(
                f"worker {index} still cannot reach the chief at {address[0]}:{address[1]}: "
                f"{_reason(last)}"
            )
    assert last
    raise _unreached(address, index, last, time.monotonic() - began) from last


def dial(sock: socket.socket, secret: Secret | None, *, seconds: float, **who: Any) -> Outbox:
    """Authenticate a connection, and make an outbox of it; closes it on an error."""
    with kept(sock):
        session, _ = introduce(sock, secret, **who)
        sock.settimeout(seconds)
        return Outbox(sock, session)


def wait_until_open(address: tuple[str, int], seconds: float) -> bool:
    """Wait until a process listens at an address; returns whether one does after `seconds`."""
    for left in tries(seconds):
        with suppress(OSError):
            connected(*address, max(_SHORTEST, left)).close()
            return True
    return False


def _unreached(
    address: tuple[str, int], index: int, error: Exception, seconds: float
) -> ClusterError:
    if isinstance(error, socket.gaierror):
        return ClusterError(
            f"Worker {index} cannot find the chief's host {address[0]!r}: no name service has "
            f"known it for {seconds:.0f} s ({error.strerror}). Correct the name in the "
            "description of the cluster, or check that this machine or pod has started."
        )
    return ClusterError(
        f"Worker {index} cannot reach the chief: {_reason(error)} at {address[0]}:{address[1]} for "
        f"{seconds:.0f} s. Check that the chief runs, that no other program has this address, and "
        "that no firewall closes the port."
    )


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "no name service knows its host's name"
    if isinstance(error, EOFError):
        return "a connection that ended without an answer"
    return str(error) or "no answer in time"

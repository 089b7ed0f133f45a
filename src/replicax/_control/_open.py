"""Opening the lines between the workers of a cluster: the chief listens, and all connect to it."""

from __future__ import annotations

import hmac
import itertools
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from replicax._control._ending import end_process, print_notice
from replicax._control._hub import HUB, Hub
from replicax._control._line import Line
from replicax._control._meeting import dial, hello
from replicax._control._message import listed
from replicax._control._wire import BROKEN, Wire, decode, encode
from replicax._core.errors import ClusterError, WorkerLost
from replicax._core.interrupts import uninterrupted
from replicax._net import PATIENCE, Forged, Secret, interface_of

if TYPE_CHECKING:
    from replicax._control._limits import Limits

Endpoint = dict[str, Any]


def open_channel(
    index: int,
    size: int,
    *,
    host: str,
    announce: Callable[[Endpoint | None], Endpoint],
    limits: Limits,
    secret: Secret | None = None,
    port: int = 0,
    on_failure: Callable[[WorkerLost], None] = end_process,
    on_notice: Callable[[str], None] = print_notice,
) -> Line:
    """Connect this worker to the others; all workers call this at the same time.

    Args:
        index: The number of this worker; 0 is the chief.
        size: How many workers there are.
        host: Where the others reach the chief. Only the chief's counts.
        announce: Called once by every worker. It takes what the chief has to say, None from the
            others, and gives that to all: host, port, and a token that nobody else should see.
        limits: What the watchdog goes by.
        secret: What the cluster's processes know; None if it has none.
        port: Where the chief listens; 0 lets the system choose.
        on_failure: What is done when a worker is lost; without it, this process ends.
        on_notice: What is done with notices of the watchdog, on the chief.

    Returns:
        The line, once all workers are connected.

    Raises:
        ClusterError: If a worker does not come, or the chief cannot be reached.
    """
    if index == 0:
        token = secrets.token_hex(32)
        hub = Hub(size, _of_run(secret, token), limits=limits, on_notice=on_notice)
        try:
            announce({"host": host, "port": hub.listen(interface_of(host), port), "token": token})
            return _join_here(hub, size, limits=limits, on_failure=on_failure)
        except BaseException:
            hub.close()
            raise
    endpoint = announce(None)
    own = _of_run(secret, str(endpoint["token"]))
    return _join(endpoint, own, index, size, limits=limits, on_failure=on_failure)


def _of_run(secret: Secret | None, token: str) -> Secret:
    """What the workers of one run know: who sees only the token, or the secret, does not."""
    value = hmac.digest(secret.value if secret else b"", token.encode(), "sha256")
    return Secret(value, secret.source if secret else "that of its run")


@final
class _Here:
    """The chief's own connection to the hub, which is no connection."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._numbers = itertools.count()

    @property
    def received(self) -> int:
        """Another number each time: it lives as long as we do."""
        return next(self._numbers)

    def send(self, frame: bytes, payload: bytes = b"") -> None:
        """Tell the hub something. By way of JSON: the chief's values are like the others'.

        No signal interrupts it: some would have the answer, and others not.
        """
        with uninterrupted:
            self._hub.take(0, decode(frame), payload)

    def close(self) -> None:
        """End the hub, too."""
        self._hub.close()


@final
class _Mouth:
    """What the hub tells the chief by."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def send(self, frame: bytes, payload: bytes = b"") -> None:
        self._line.take(decode(frame), payload)


def _join_here(
    hub: Hub, size: int, *, limits: Limits, on_failure: Callable[[WorkerLost], None]
) -> Line:
    line = Line(
        0,
        size,
        link=_Here(hub),
        limits=limits,
        on_failure=on_failure,
        lateness=hub.lateness,
    )
    missing = hub.join_chief(_Mouth(line), host=socket.gethostname(), pid=os.getpid())
    if missing:
        raise ClusterError(
            "All workers of a cluster connect to the chief when they start. "
            f"Received: no connection of {listed(missing)}, or one that has ended. Without all of "
            "them nobody can begin. Look at what they print; if they say that they cannot reach "
            "this machine, open the port between the machines."
        )
    line.start()
    return line


def _join(
    endpoint: Mapping[str, Any],
    secret: Secret,
    index: int,
    size: int,
    *,
    limits: Limits,
    on_failure: Callable[[WorkerLost], None],
) -> Line:
    wire = _connect(endpoint, secret, index, limits)
    try:
        welcome, _ = wire.receive()
    except BROKEN as error:
        wire.close()
        raise ClusterError(
            "All workers of a cluster connect to the chief when they start. "
            f"Received: {error!r} for worker {index} of {size} from {endpoint['host']}:"
            f"{endpoint['port']}. The chief hangs up when not all workers come in time, and when "
            "it ends. See what it prints."
        ) from error
    line = Line(index, size, link=wire, limits=limits, on_failure=on_failure)
    line.take(welcome)
    wire.start()
    threading.Thread(target=_hear, args=(line, wire), name="replicax-line", daemon=True).start()
    line.start()
    return line


def _connect(endpoint: Mapping[str, Any], secret: Secret, index: int, limits: Limits) -> Wire:
    address = (str(endpoint["host"]), int(endpoint["port"]))
    try:
        return dial(
            socket.create_connection(address, limits.joining),
            secret,
            place=f"worker {index}",
            wanted=HUB,
            hello=hello(index),
            peer=f"the chief at {address[0]}:{address[1]}",
            deadline=time.monotonic() + PATIENCE,
            seconds=None,
        )
    except BROKEN as error:
        if isinstance(error, ClusterError):
            raise
        raise ClusterError(
            "Every worker has to reach the chief by TCP. "
            f"Received: {error!r} at {address[0]}:{address[1]}. Workers agree, and notice when one "
            "is lost, by way of the chief. Let the cluster's address of the chief be one that the "
            "others reach, and open this port."
        ) from error


def _hear(line: Line, wire: Wire) -> None:
    try:
        while True:
            header, payload = wire.receive()
            line.take(header, payload)
    except Forged:
        wire.send(encode({"kind": "altered"}))  # this direction may be whole
        line.lose_chief("altered")
    except BROKEN:
        line.lose_chief("died")
    wire.close()

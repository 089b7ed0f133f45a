"""Opening the lines between the workers of a cluster: the chief listens, and all connect to it."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from replicax._control._ending import end_process, print_notice
from replicax._control._hub import Hub
from replicax._control._line import Line
from replicax._control._message import listed
from replicax._control._wire import BROKEN, Wire, decode, encode
from replicax._core.errors import ClusterError, WorkerLost

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
        hub = Hub(size, token, limits=limits, on_notice=on_notice)
        try:
            announce({"host": host, "port": hub.listen(port), "token": token})
            return _join_here(hub, size, limits=limits, on_failure=on_failure)
        except BaseException:
            hub.close()
            raise
    return _join(announce(None), index, size, limits=limits, on_failure=on_failure)


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
        """Tell the hub something. By way of JSON: the chief's values are like the others'."""
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
            f"Received: nothing from {listed(missing)} in {limits.joining:g} s. Without all of "
            "them nobody can begin. Look at what they print; if they say that they cannot reach "
            "this machine, open the port between the machines."
        )
    line.start()
    return line


def _join(
    endpoint: Mapping[str, Any],
    index: int,
    size: int,
    *,
    limits: Limits,
    on_failure: Callable[[WorkerLost], None],
) -> Line:
    wire = _connect(endpoint, limits)
    hello = {"kind": "hello", "token": endpoint["token"], "index": index, "size": size}
    wire.send(encode({**hello, "host": socket.gethostname(), "pid": os.getpid()}))
    try:
        welcome, _ = wire.receive()
    except BROKEN as error:
        wire.close()
        raise ClusterError(
            f"The chief lets each worker of its cluster in once. Received: {error!r} for worker "
            f"{index} of {size} from {endpoint['host']}:{endpoint['port']}. It hangs up on whom "
            "it does not know, and when not all workers come in time. Let all workers be started "
            "for the same cluster, each with its own number; see what the chief prints."
        ) from error
    line = Line(index, size, link=wire, limits=limits, on_failure=on_failure)
    line.take(welcome)
    wire.start()
    threading.Thread(target=_hear, args=(line, wire), name="replicax-line", daemon=True).start()
    line.start()
    return line


def _connect(endpoint: Mapping[str, Any], limits: Limits) -> Wire:
    address = (str(endpoint["host"]), int(endpoint["port"]))
    try:
        sock = socket.create_connection(address, limits.joining)
    except OSError as error:
        raise ClusterError(
            "Every worker has to reach the chief by TCP. "
            f"Received: {error} at {address[0]}:{address[1]}. Workers agree, and notice when one "
            "is lost, by way of the chief. Let the cluster's address of the chief be one that the "
            "others reach, and open this port."
        ) from error
    return Wire(sock)


def _hear(line: Line, wire: Wire) -> None:
    try:
        while True:
            header, payload = wire.receive()
            line.take(header, payload)
    except BROKEN:
        line.lose_chief("died")
    wire.close()

"""Opening the channel between the workers of a cluster: the chief listens, and all connect."""

from __future__ import annotations

import hmac
import itertools
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from replicax._control._channel import ClusterChannel
from replicax._control._ending import end_process, print_notice
from replicax._control._hub import HUB, Hub
from replicax._control._meeting import incomplete, join
from replicax._core.env import RX_SECOND_PORT
from replicax._core.errors import ClusterError
from replicax._core.interrupts import uninterrupted
from replicax._net import (
    BROKEN,
    Encoded,
    Forged,
    Outbox,
    Secret,
    decode,
    encode,
    interface_of,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from replicax._control._heartbeat import Limits
    from replicax._core.errors import WorkerLost

Endpoint = dict[str, Any]


def open_channel(
    index: int,
    size: int,
    *,
    host: str,
    announce: Callable[..., AbstractContextManager[Endpoint]],
    limits: Limits,
    secret: Secret | None = None,
    port: int = 0,
    on_failure: Callable[[WorkerLost], None] = end_process,
    on_notice: Callable[[str], None] = print_notice,
) -> ClusterChannel:
    """Connect this worker to the others; all workers call this at the same time.

    Returns once all are connected; `ClusterError` if one does not come, or the chief, worker 0,
    cannot be reached. `host` and `port` are where the others reach the chief's channel; only the
    chief's count, and port 0 lets the system choose. `announce` is called once by every worker,
    with the chief's endpoint on the chief and None on the others. Its context yields the endpoint
    to all: host, port, and a token that nobody else should see. Workers leave the context when all
    are connected; if one leaves earlier, `on_leaving` is called on the chief with its number.
    `on_failure` is called when a worker is lost; by default this process ends. `on_notice` gets the
    notices of the watchdog, on the chief.
    """
    if index == 0:
        token = secrets.token_hex(32)
        hub = Hub(size, _of_run(secret, token), limits=limits, on_notice=on_notice)
        try:
            own = {"host": host, "port": _listen(hub, host, port), "token": token}
            with announce(own, on_leaving=hub.lose):
                return _join_here(hub, size, limits=limits, on_failure=on_failure)
        except BaseException:
            hub.close()
            raise
    with announce(None) as endpoint:
        own = _of_run(secret, str(endpoint["token"]))
        return _join(endpoint, own, index, size, limits=limits, on_failure=on_failure)


def _listen(hub: Hub, host: str, port: int) -> int:
    try:
        return hub.listen(interface_of(host), port)
    except OSError as error:
        if not port:
            raise
        raise ClusterError(
            f"Cannot listen at port {port}, of {RX_SECOND_PORT}: {error.strerror}. End the program "
            "that uses it, set another port, or unset the variable: then the system chooses one."
        ) from error


def _of_run(secret: Secret | None, token: str) -> Secret:
    """The secret of one run, made of the cluster's secret and a token; neither alone suffices."""
    value = hmac.digest(secret.value if secret else b"", token.encode(), "sha256")
    return Secret(value, secret.source if secret else "that of its run")


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
        """Close the hub."""
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


def _join(
    endpoint: Endpoint,
    secret: Secret,
    index: int,
    size: int,
    *,
    limits: Limits,
    on_failure: Callable[[WorkerLost], None],
) -> ClusterChannel:
    address = str(endpoint["host"]), int(endpoint["port"])
    deadline = time.monotonic() + limits.connecting
    wire, welcome = join(address, index, HUB, deadline, secret, is_second=True)
    channel = ClusterChannel(index, size, link=wire, limits=limits, on_failure=on_failure)
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

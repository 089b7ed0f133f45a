"""Connect to the chief, with retries until it listens; a proxy may accept and hang up before."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from replicax._control._ending import print_notice
from replicax._core.env import RX_SECOND_PORT
from replicax._core.errors import ClusterError
from replicax._net import Outbox, introduce, own, tries, tune

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
            "The chief's address names a machine that its workers can find. "
            f"Received: {address[0]!r}, which no name service has known for {seconds:.0f} s "
            f"({error.strerror}); this is worker {index}. Correct the name in the description of "
            "the cluster, or see whether that machine, or pod, has started."
        )
    return ClusterError(
        "Every worker has to reach the chief by TCP. "
        f"Received: {_reason(error)} at {address[0]}:{address[1]} for {seconds:.0f} s; this is "
        f"worker {index}. The chief may not run, another program may have that address, or a "
        "firewall closes the port. See what the chief prints, and look whether this machine "
        f"reaches that address.{_OF_SECOND_PORT if is_second else ''}"
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

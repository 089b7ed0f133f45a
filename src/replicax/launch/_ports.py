"""Free ports of this machine, held until the workers listen on them."""

from __future__ import annotations

import socket
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from replicax._core.errors import ClusterError


@contextmanager
def free_ports(count: int) -> Generator[list[int]]:
    """Find unused ports and hold them as long as the context lasts.

    A port that is looked up and given back can be taken before the worker listens on it. So we stay
    bound, and never listen: the kernel gives such a port to nobody who asks for any free one, and
    lets a server listen that sets SO_REUSEADDR or SO_REUSEPORT, as gRPC does.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(_bound(0)) for _ in range(count)]
        yield [int(bound.getsockname()[1]) for bound in sockets]


def check_ports(ports: Sequence[int]) -> None:
    """Refuse ports on which another program already listens."""
    for port in ports:
        try:
            _bound(port, share=False).close()
        except OSError as error:
            raise ClusterError(
                f"Cannot use port {port} of this machine: {error.strerror}. End the program that "
                "uses it, or give the host another first port, on every machine: `--hosts "
                "a:23456,b`."
            ) from None


def _bound(port: int, *, share: bool = True) -> socket.socket:
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("", port))
    except OSError:
        bound.close()
        raise
    return bound

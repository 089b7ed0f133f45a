"""Addresses of listeners: `tcp://host:port`, and `unix://host id/path` on the same host.

After a `#` comes the listener's place in the cluster, as in `tcp://host:port#/job:ps/task:2`: a
connection reaches that process or none. A second `#` begins the name of the cluster, if it has one.
"""

from __future__ import annotations

import platform
import socket
import uuid
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from replicax._core.errors import UsageError


class Address(NamedTuple):
    """One way to a listener; its text, for messages, leaves out the name of the cluster."""

    text: str
    host: str  # for a Unix socket, the id of the host
    port: int = 0
    path: str = ""
    place: str = ""


def parse(text: str) -> Address:
    """Read an address."""
    scheme, _, rest = text.partition("://")
    rest, _, place = rest.partition("#")
    shown = at_place(f"{scheme}://{rest}", place.partition("#")[0])
    if scheme == "unix":
        host, slash, path = rest.partition("/")
        if host and path:
            return Address(shown, host, path=slash + path, place=place)
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and host and port.isdecimal() and 0 < int(port) < 1 << 16:
        return Address(shown, host.removeprefix("[").removesuffix("]"), int(port), place=place)
    raise UsageError(
        f"An address must be tcp://host:port or unix://host-id/path, got {text!r}. Use those that "
        "`Listener.start` returned."
    )


def at_place(address: str, place: str) -> str:
    """An address with its listener's place."""
    return f"{address}#{place}" if place else address


def reachable(texts: Sequence[str]) -> list[Address]:
    """The addresses that can work from here, fastest first."""
    addresses = [parse(text) for text in texts]
    here = [address for address in addresses if address.path and address.host == host_id()]
    found = here + [address for address in addresses if address.port]
    if not found:
        raise UsageError(
            f"No address in {list(texts)} works from this host. Unix sockets are reached only on "
            "their own host. Let the listener use TCP, too."
        )
    return found


def of_tcp(sock: socket.socket, host: str) -> str:
    """The address of a listening socket, under the requested name."""
    port = sock.getsockname()[1]
    if host in ("", "0.0.0.0", "::"):  # on all interfaces: the host's name stands for them
        host = socket.gethostname()
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def of_unix(path: str) -> str:
    """The address of a Unix socket of this host."""
    return f"unix://{host_id()}{path}"


@cache
def host_id() -> str:
    """An id that processes share if they can share a Unix socket; it lasts until the next boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return f"{platform.node()}-{uuid.getnode():x}".replace("/", "-")

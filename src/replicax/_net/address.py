"""Addresses of listeners, `tcp://host:port` and `unix://host id/path`, and their interfaces.

After a `#` comes the listener's place in the cluster, as in `tcp://host:port#/job:ps/task:2`: a
connection reaches that process or none. A second `#` begins the name of the cluster, if it has one.
A process listens only on the interface of its address.
"""

from __future__ import annotations

import ipaddress
import platform
import re
import socket
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from replicax._core.errors import ClusterSpecError, UsageError
from replicax._net.sockets import kept, own


class Address(NamedTuple):
    """One way to a listener; its text, for messages, leaves out the name of the cluster."""

    text: str
    host: str  # for a Unix socket, the id of the host
    port: int = 0
    path: str = ""
    place: str = ""


def parse(text: str) -> Address:
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
    return f"unix://{host_id()}{path}"


@cache
def host_id() -> str:
    """An id that processes share if they can share a Unix socket; it lasts until the next boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return f"{platform.node()}-{uuid.getnode():x}".replace("/", "-")


# The names that RFC 6761 and the usual `/etc/hosts` give to the loopback interface.
_LOOPBACK = re.compile(r"(ip6-)?localhost[46]?(\.localdomain[46]?)?|.+\.localhost", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """Whether a host is certainly a loopback address, which other machines cannot reach."""
    if address := _numeric(host):
        return address.is_loopback
    return bool(_LOOPBACK.fullmatch(host.rstrip(".")))


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address if the host is one, also in the short forms that systems take, such as 127.1."""
    with suppress(OSError, ValueError):
        found = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
        return ipaddress.ip_address(found[0][4][0])
    return None


def interface_of(host: str) -> str:
    """The interface for a task whose address has this host; an empty text for all interfaces.

    All interfaces are needed in three cases: the name does not resolve to this machine, as behind a
    Kubernetes service; it has several addresses, of which others may use any; or it resolves to the
    loopback interface here only, as the machine's own name in Debian's `/etc/hosts`.
    """
    check_host(host)
    if is_loopback(host):
        if address := _numeric(host):  # not all tasks need have the same
            return str(getattr(address, "ipv4_mapped", None) or address)
        return "::1" if host.lower().startswith(("ip6-", "localhost6")) else "127.0.0.1"
    with suppress(OSError):
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        family, *_, place = found[0]
        if len(found) == 1 and not is_loopback(str(place[0])):
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(place)
            return str(place[0])
    return ""


def check_host(host: str) -> None:
    """Refuse what no name service can be asked for: Python then raises no `OSError`."""
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ClusterSpecError(
            f"Cannot look up the host {host[:80]!r}: {error}. Correct the address in the "
            "description of the cluster."
        ) from error


def listen_at(host: str, port: int, queue: int) -> socket.socket:
    """A socket that listens on an interface; for an empty text on all, by IPv6 and IPv4."""
    if not host and socket.has_dualstack_ipv6():
        with suppress(OSError):  # compiled in, but turned off
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=queue, dualstack_ipv6=True
            )
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, place = found[0]
    return socket.create_server(place, family=family, backlog=queue)


def hold(host: str, port: int) -> socket.socket:
    """Hold a port of an interface, 0 for any, for a server of another library in this process.

    A port that is looked up and given back can be taken before the server listens. So this socket
    is bound, and never listens: then only a server that sets SO_REUSEPORT, as gRPC does, can listen
    there, on Linux also with SO_REUSEADDR. OSError if another program listens.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, place = found[0]
    with kept(own(socket.socket(family))) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(place)
        # Set after `bind`, which thus refuses a port that another program shares. macOS needs it.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return held

"""On which interface a process listens whose address is known: on no more than that one."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

from replicax._core.errors import ClusterSpecError


def is_loopback(host: str) -> bool:
    """Whether a host is this machine for sure, and nobody from outside can connect to it there."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() in ("localhost", "ip6-localhost")


def interface_of(host: str) -> str:
    """The interface on which a task listens whose address has this host.

    If the name does not lead here, as behind a Kubernetes service, all of them: an empty text. So
    it is too if it has several addresses, of which others may take any; and if it leads to the
    loopback interface, as Debian's `/etc/hosts` has the machine's own name: it leads others
    elsewhere.

    Raises:
        ClusterSpecError: If it can be no name of a host.
    """
    check_host(host)
    if is_loopback(host):
        with suppress(ValueError):
            address = ipaddress.ip_address(host)  # not all tasks need have the same
            return str(getattr(address, "ipv4_mapped", None) or address)
        return "127.0.0.1"
    with suppress(OSError):
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        family, *_, place = found[0]
        if len(found) == 1 and not is_loopback(str(place[0])):
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(place)
            return str(place[0])
    return ""


def check_host(host: str) -> None:
    """Refuse what no name service can be asked for: Python then raises no `OSError`.

    Raises:
        ClusterSpecError: If it can be no name of a host.
    """
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ClusterSpecError(
            "The parts of a host's name have 1 to 63 characters. "
            f"Received: {host[:80]!r} ({error}). No name service can be asked for it. Correct the "
            "address in the description of the cluster."
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

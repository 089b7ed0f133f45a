"""On which interface a process listens whose address is known: on no more than that one."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress


def is_loopback(host: str) -> bool:
    """Whether a host is this machine for sure, and nobody from outside can connect to it there."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() in ("localhost", "ip6-localhost")


def interface_of(host: str) -> str:
    """The interface on which a task listens whose address has this host.

    If the name does not lead here, as behind a Kubernetes service, all of them: an empty text. So
    it is too if it leads to the loopback interface, as Debian's `/etc/hosts` has the machine's own
    name: it leads others elsewhere.
    """
    if is_loopback(host):
        return "::1" if ":" in host else "127.0.0.1"
    with suppress(OSError):
        for family, _, _, _, place in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            if is_loopback(str(place[0])):
                continue
            with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(place)
                return str(place[0])
    return ""


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

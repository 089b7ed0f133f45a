"""The interface on which a process listens: only the one of its address."""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress

from replicax._core.errors import ClusterSpecError

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

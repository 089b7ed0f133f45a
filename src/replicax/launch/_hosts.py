"""`--hosts a,b`: the addresses of all workers, and which of the hosts is this machine."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, NamedTuple

from replicax._core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIRST_PORT = 12345
_LAST_PORT = 2**16 - 1

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@-][^\s:\[\]/@]*)(?::([0-9]{1,5}))?")


class Host(NamedTuple):
    """A machine and the port of its first worker; its other workers have the ports after that."""

    name: str
    port: int


def parse_hosts(text: str) -> list[Host]:
    """Read hosts separated by commas, each with or without its first port.

    Example:
        >>> from replicax.launch._hosts import parse_hosts
        >>> parse_hosts("a,b:9000")
        [Host(name='a', port=12345), Host(name='b', port=9000)]
    """
    hosts: list[Host] = []
    for part in text.split(","):
        found = _HOST.fullmatch(part.strip())
        port = int(found[2] or FIRST_PORT) if found else 0
        if not found or not 0 < port <= _LAST_PORT:
            raise UsageError(
                f"`--hosts` must list hosts, with or without a port each, got {part!r} in "
                f"{text!r}. Write `a,b`, `a:9000,b:9000` or, for IPv6, `[fe80::1]`."
            )
        hosts.append(Host(found[1], port))
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise UsageError(
            f"`--hosts` must name each host once, got {text!r}. For several workers a host, pass "
            "`--workers-per-host`."
        )
    return hosts


def addresses(hosts: Sequence[Host], workers: int) -> list[str]:
    """The address of every worker, host after host, the same number on each.

    Example:
        >>> from replicax.launch._hosts import addresses, parse_hosts
        >>> addresses(parse_hosts("a,b"), 4)
        ['a:12345', 'a:12346', 'b:12345', 'b:12346']
    """
    here, rest = divmod(workers, len(hosts))
    if rest:
        raise UsageError(
            f"Cannot divide {workers} workers evenly among {len(hosts)} hosts. Use "
            f"{len(hosts) * (here + 1)} workers, or another number of hosts."
        )
    return [address(host, i) for host in hosts for i in range(here)]


def address(host: Host, number: int) -> str:
    """The address of a process of a host, counted from 0."""
    port = host.port + number
    if port > _LAST_PORT:
        raise UsageError(
            f"Process {number + 1} of {host.name} would get port {port}, above {_LAST_PORT}: the "
            f"first port is {host.port}. Use a lower first port: `{host.name}:23456`."
        )
    return f"{host.name}:{port}"


def this_host(
    hosts: Sequence[Host],
    own_names: Sequence[str] | None = None,
    is_own: Callable[[str], bool] | None = None,
) -> int:
    """The number of the one host that is this machine, by its name, else by its addresses."""
    names = _own_names() if own_names is None else own_names
    named = [i for i, host in enumerate(hosts) if host.name.lower() in names]
    own = named or [i for i, host in enumerate(hosts) if (is_own or _is_own)(host.name)]
    if len(own) != 1:
        several = ", ".join(hosts[i].name for i in own)
        raise UsageError(
            f"Of the hosts {', '.join(host.name for host in hosts)}, "
            f"{f'{several} are' if own else 'none is'} this machine, {' or '.join(names)}. "
            "With `--by-hand` name it once, as the other machines reach it, and run the same "
            "command on each; without it, all workers are started from here by ssh."
        )
    return own[0]


def is_here(host: Host) -> bool:
    """Whether a host is this machine."""
    return host.name.lower() in _own_names() or _is_own(host.name)


def _own_names() -> list[str]:
    name = socket.gethostname().lower()
    return list(dict.fromkeys([name, name.partition(".")[0]]))


def _is_own(host: str) -> bool:
    """Whether the host's address belongs to this machine: only then can a socket bind to it."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[str | int | bytes, ...]) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True

"""Where the ranks of a job run: Slurm's notation for hosts and tasks, and ranks laid over hosts.

Pure functions; the resolvers read the variables.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from replicax._core.errors import ClusterSpecError

_NAME = re.compile(r"(?:[^\[\],\s]|\[[0-9,-]+\])+")  # of one host or, with brackets, of several
_PART = re.compile(r"\[([0-9,-]+)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class Place(NamedTuple):
    """Where one rank runs: its host, and its number among the ranks of that host."""

    host: str
    local_rank: int


def expand_hostlist(hostlist: str) -> list[str]:
    """The hosts that Slurm's notation names, in its order.

    **Differs from TF:** brackets may stand anywhere and more than once.

    Example:
        >>> expand_hostlist("login,n[08-10,12],r[0-1]c[1-2]")
        ['login', 'n08', 'n09', 'n10', 'n12', 'r0c1', 'r0c2', 'r1c1', 'r1c2']
    """
    names = _NAME.findall(hostlist)
    if not names or ",".join(names) != hostlist:
        raise _malformed_hostlist(hostlist)
    hosts: list[str] = []
    for name in names:
        parts = [
            _numbers(ranges, hostlist) if ranges else [text] for ranges, text in _PART.findall(name)
        ]
        hosts += ["".join(chosen) for chosen in itertools.product(*parts)]
    return hosts


def _numbers(ranges: str, hostlist: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _malformed_hostlist(hostlist)
        first, last = match[1], match[2] or match[1]
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _malformed_hostlist(hostlist: str) -> ClusterSpecError:
    return ClusterSpecError(
        f"{hostlist!r} is no list of hosts in Slurm's notation, such as n[01-03,7],login. "
        "`scontrol show hostnames` explains Slurm's own."
    )


def expand_tasks_per_node(tasks_per_node: str) -> list[int]:
    """How many tasks each node has, from Slurm's notation.

    Example:
        >>> expand_tasks_per_node("3(x2),2,1")
        [3, 3, 2, 1]
    """
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        match = _TASKS.fullmatch(part)
        if match is None:
            raise ClusterSpecError(
                f"{tasks_per_node!r} is no list of tasks per node in Slurm's notation, such as "
                "2(x3),1. Correct it, or pass tasks_per_node to the resolver."
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def place_ranks(nodes: Iterable[tuple[str, int]], *, cyclic: bool = False) -> list[Place]:
    """Lay ranks over nodes: a node is filled before the next begins, or they take turns (`cyclic`).

    Example:
        >>> [f"{host} {local}" for host, local in place_ranks([("a", 2), ("b", 1)])]
        ['a 0', 'a 1', 'b 0']
        >>> [f"{host} {local}" for host, local in place_ranks([("a", 2), ("b", 1)], cyclic=True)]
        ['a 0', 'b 0', 'a 1']
    """
    places = [Place(host, local) for host, count in nodes for local in range(count)]
    return sorted(places, key=lambda place: place.local_rank) if cyclic else places


def check_place(
    places: Sequence[Place], rank: int, *, host: str | None, local_rank: int | None, fix: str
) -> None:
    """Refuse ranks laid otherwise than the launcher laid them, as far as this rank can tell.

    A `host` or `local_rank` that the launcher does not tell is None; `fix` says how to get ranks
    laid as expected.
    """
    if rank >= len(places):
        raise ClusterSpecError(f"Rank {rank} has no place: the hosts have {len(places)}. {fix}")
    expected = places[rank]
    found = Place(
        expected.host if host is None else host,
        expected.local_rank if local_rank is None else local_rank,
    )
    if found != expected:
        raise ClusterSpecError(
            f"Rank {rank} is number {found.local_rank} on {found.host}, but the addresses assume "
            f"number {expected.local_rank} on {expected.host}. {fix}"
        )

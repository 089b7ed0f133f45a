"""The common parts of all clusters: `Member`, `Roster`, and the protocol `Cluster`.

A *member* is a process that serves: a server, which holds variables, or a worker, which runs
closures. What it does is in `member.py`. Where members run, and who brings dead ones back, is what
the kinds of clusters differ in: `started_cluster.py`, `ray_cluster.py`, `given_cluster.py`, and
`ThreadCluster` in `member.py`.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, final

from replicax._core.env import KERAS_BACKEND, tuning_for_child
from replicax._core.errors import UnavailableError
from replicax._cpu.tuning import parts_on
from replicax._net import in_cluster
from replicax.cluster_resolver import ClusterSpec, cluster_name

SERVER, WORKER = "server", "worker"
# TensorFlow's names of jobs, in TF_CONFIG and in messages.
JOBS = {SERVER: "ps", WORKER: "worker"}
ROLES = {job: role for role, job in JOBS.items()}

# By name: a starter does not import the members' code, and tests may use other members.
START_MEMBER = "replicax._ps.hosts.member:start_member"

_LINES_TOLD = 15
_MOST_LOCAL_WORKERS = 8
_WORKERS_PER_SERVER = 4


@final
@dataclass(frozen=True)
class Member:
    """Where a member, numbered from 0 within its role ("server" or "worker"), can be reached now.

    The addresses, such as `tcp://127.0.0.1:4000`, are of one listener. `incarnation`
    counts how often it was seen to have come back; what it held before is lost.
    """

    role: str
    index: int
    addresses: tuple[str, ...]
    incarnation: int

    @property
    def task(self) -> str:
        """Its name as TensorFlow writes it: `/job:ps/task:0`."""
        return task_name(self.role, self.index)


@final
@dataclass(frozen=True)
class Members:
    """How the members of one role are started.

    Forks have imported the same modules in the environments of both roles;
    `shares` are variables of one fork, by its number, such as of the GPU that it computes on.
    Resources are Ray's, such as `{"CPU": 1, "GPU": 1}`.
    """

    count: int
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    shares: Sequence[Mapping[str, str]] = ()
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})


class Cluster(Protocol):
    """Where members are, and how dead ones come back."""

    secret: bytes
    num_servers: int
    num_workers: int
    where: str  # for the strategy's `repr`

    def member(
        self, role: str, index: int, *, after: int = -1, timeout: float | None = None
    ) -> Member:
        """Wait for an incarnation of a member that is newer than `after`.

        `UnavailableError` if none comes in time, or none will ever come.
        """
        ...

    def kill(self, role: str, index: int) -> None:
        """End a member hard that does not answer, so that it comes back anew."""
        ...

    def add_worker(self) -> int:
        """Add a worker to the cluster and return its index."""
        ...

    def close(self) -> None:
        """End everything that the cluster has started."""
        ...


class Size(NamedTuple):
    """The size of a local cluster, and the number of threads of each worker."""

    servers: int
    workers: int
    threads: int


def local_size(cores: int) -> Size:
    """The size of a local cluster on a machine with this number of cores.

    At least two workers: with one, nothing would be asynchronous, and on few cores the second
    computes while the first one waits for a server. Not more than eight: each has a Python, a JAX
    and compiled programs of its own, about half a gigabyte, and all wait for the same memory bus.
    A server waits most of the time, so it has no core for itself; one serves four workers.

    Example:
        >>> from replicax._ps.hosts.cluster import local_size
        >>> local_size(2)
        Size(servers=1, workers=2, threads=1)
        >>> local_size(32)
        Size(servers=2, workers=8, threads=4)
    """
    workers = min(max(2, cores - 1), _MOST_LOCAL_WORKERS)
    servers = -(-workers // _WORKERS_PER_SERVER)
    return Size(servers, workers, max(1, cores // workers))


def task_name(role: str, index: int) -> str:
    """A member's name as TensorFlow writes it."""
    return f"/job:{JOBS[role]}/task:{index}"


def server_device(index: int) -> str:
    """The device of a server's variables, as TensorFlow names it."""
    return f"/job:ps/replica:0/task:{index}/device:CPU:0"


def place_of(role: str, index: int, at: str = "") -> str:
    """A member's place in its cluster, which it proves to whoever connects.

    `at` is what `at_of` gives, where the cluster has a description: several clusters of one user
    may have one secret.
    """
    return f"{task_name(role, index)}@{at}" if at else task_name(role, index)


def at_of(spec: ClusterSpec, role: str, index: int) -> str:
    """A member's address in the description of its cluster, and the name of that cluster."""
    address = spec.task_address(JOBS[role], index)
    return in_cluster(address, cluster_name(spec, *JOBS.values()))


def environment_of_members() -> dict[str, str]:
    """Variables of the environment of every member, as this program has chosen."""
    return {KERAS_BACKEND: "jax", **tuning_for_child(parts_on())}


def load_starter(name: str) -> Callable[..., Any]:
    """Import the function that starts members, from `module:function`.

    It takes what `start_member` takes, and returns when the member listens.
    """
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def gone(role: str, index: int, reason: str) -> UnavailableError:
    """The error for a member that will never come back."""
    return UnavailableError(
        f"{JOBS[role]} {index} will not come back: {reason} Fix the cause, and start again.",
        task_name(role, index),
    )


def last_lines(text: str) -> str:
    """The end of what a member, or whoever starts it, has printed, as a paragraph of a message."""
    lines = [line for line in text.splitlines() if line.strip()][-_LINES_TOLD:]
    return "\n" + "".join(f"    {line}\n" for line in lines)


@final
class Roster:
    """The latest incarnation of each member, and the members that will never come back."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, int], Member] = {}
        self._lost: dict[tuple[str, int], str] = {}
        self._over: str | None = None
        self._changed = threading.Condition()

    def publish(self, member: Member) -> None:
        with self._changed:
            self._members[member.role, member.index] = member
            self._changed.notify_all()

    def lose(self, role: str, index: int, reason: str) -> None:
        """Note that a member will not come back, and why."""
        with self._changed:
            self._lost[role, index] = reason
            self._changed.notify_all()

    def end(self, reason: str) -> None:
        """Note that no more members will come; the first reason counts."""
        with self._changed:
            self._over = self._over or reason
            self._changed.notify_all()

    def wait(self, role: str, index: int, *, after: int, timeout: float) -> Member:
        """Wait for an incarnation of a member that is newer than `after`."""

        def settled() -> bool:
            return bool(self._newer(role, index, after) or self._reason(role, index))

        with self._changed:
            self._changed.wait_for(settled, timeout)
            member, reason = self._newer(role, index, after), self._reason(role, index)
        if member is not None:
            return member
        who = f"{JOBS[role]} {index}"
        if reason is None:
            before = "it has not been there before" if after < 0 else "it was there before"
            raise UnavailableError(
                f"No {who} within {timeout:g} seconds; {before}. Check its last output, and "
                "whether its machine has enough memory and cores. Allow more time if it loads a "
                "lot.",
                task_name(role, index),
            )
        raise gone(role, index, reason)

    def _newer(self, role: str, index: int, after: int) -> Member | None:
        member = self._members.get((role, index))
        return member if member is not None and member.incarnation > after else None

    def _reason(self, role: str, index: int) -> str | None:
        return self._over or self._lost.get((role, index))

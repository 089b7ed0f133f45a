"""A cluster whose processes somebody else starts and restarts, at described addresses.

Each of them runs `rx.Server(...).join()`, or creates the same strategy; see `task_server.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, final

from replicax._core.errors import ClusterSpecError, UnavailableError, UsageError
from replicax._net import (
    HOW_TO,
    ConnectionLost,
    at_place,
    given_secret,
    is_loopback,
    secret_of_this_machine,
    tries,
)
from replicax._ps.hosts.cluster import JOBS, ROLES, Member, at_of, place_of, task_name
from replicax._ps.hosts.contact import About, ask_about, kill, say_goodbye

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterResolver, ClusterSpec

_log = logging.getLogger("replicax")
_ALLOWED = ("chief", "worker", "ps", "evaluator")
_ALONE = ("chief", "evaluator")
_PATIENCE = 3600.0  # as in TensorFlow: somebody may have to repair a machine first
_SECONDS_TO_ANSWER = 5.0
_SECONDS_TO_PART = 2.0
_SECONDS_OF_SILENCE = 10.0


def cluster_secret(spec: ClusterSpec) -> bytes:
    """The secret of a cluster from the environment; from a file if all of it is on this machine."""
    if given := given_secret():
        return given.value
    far = [str(task) for task in spec.tasks if not is_loopback(host_of(spec, task.job, task.index))]
    if far:
        raise ClusterSpecError(
            f"No secret in the environment, but {', '.join(far)} is on another machine. Without "
            f"one, anyone who reaches these processes can run code there. {HOW_TO}"
        )
    return secret_of_this_machine().value


def host_of(spec: ClusterSpec, job: str, index: int) -> str:
    """The host of a task, without the brackets of IPv6."""
    return spec.task_address(job, index).rpartition(":")[0].strip("[]")


@final
class GivenCluster:
    """Members at addresses that do not change."""

    def __init__(self, spec: ClusterSpec, secret: bytes) -> None:
        check_spec(spec)
        self.secret = secret
        self.num_servers = spec.num_tasks("ps")
        self.num_workers = spec.num_tasks("worker")
        self._spec = spec
        self._lock = threading.Lock()
        self._last: dict[tuple[str, int], About] = {}
        self._incarnations: dict[tuple[str, int], int] = {}
        self._given_up: set[tuple[str, int]] = set()
        self._closed = False

    @classmethod
    def described(cls, resolver: ClusterResolver) -> GivenCluster:
        """The cluster that a resolver describes, with this process's secret."""
        spec = resolver.cluster_spec()
        check_spec(spec)
        return cls(spec, cluster_secret(spec))

    def member(
        self, role: str, index: int, *, after: int = -1, timeout: float | None = None
    ) -> Member:
        """See `Cluster.member`. Without a timeout it waits for an hour, as TensorFlow does.

        `Refused` if another process listens there, perhaps of another cluster, or the secret
        differs.
        """
        address = self._spec.task_address(JOBS[role], index)
        seconds = _PATIENCE if timeout is None else timeout
        told = False
        for left in tries(seconds):
            if self._closed:
                break
            if seconds - left >= _SECONDS_OF_SILENCE and not told:
                told = True
                _log.warning("Waiting for %s %d at %s.", JOBS[role], index, address)
            try:
                there = self._address(role, index)
                found = ask_about(there, self.secret, timeout=min(left, _SECONDS_TO_ANSWER))
            except ConnectionLost:
                continue
            member = self._note(role, index, found)
            if member.incarnation > after:
                return member
        when = "before the cluster was closed" if self._closed else f"within {seconds:g} seconds"
        raise UnavailableError(
            f"No {'new ' if after >= 0 else ''}{JOBS[role]} {index} at {address} {when}. "
            "Start the same program there, with the same cluster and the same secret.",
            task_name(role, index),
        )

    def kill(self, role: str, index: int) -> None:
        """Kill a member whose process is on this machine.

        Elsewhere it can only be given up: if it answers again, it counts as a new one.
        """
        with self._lock:
            last = self._last.get((role, index))
            near = is_loopback(host_of(self._spec, JOBS[role], index))
            if last is not None and not (near and kill(last)):
                self._given_up.add((role, index))

    def add_worker(self) -> int:
        """Refused: somebody else starts the processes."""
        raise UsageError(
            f"Cannot add a worker to {self._spec}: its size is fixed. Add the address for all "
            "processes and start again, or use a Ray cluster."
        )

    def close(self) -> None:
        """Say goodbye to all members that answer, so that their processes end.

        Whoever waits for a member stops waiting.
        """
        self._closed = True
        threads = [
            threading.Thread(target=self._part, args=(role, index), daemon=True)
            for job, role in ROLES.items()
            for index in self._spec.task_indices(job)
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + _SECONDS_OF_SILENCE
        for thread in threads:  # looking up a host name may take a minute
            thread.join(max(0.0, end - time.monotonic()))

    def _note(self, role: str, index: int, found: About) -> Member:
        """Count the process that is there: a different one, or one given up before, is new."""
        who = (role, index)
        with self._lock:
            before = self._last.get(who)
            if before is None or before.life != found.life or who in self._given_up:
                self._incarnations[who] = self._incarnations.get(who, -1) + 1
                self._given_up.discard(who)
            self._last[who] = found
            # By the name in the description: the process's own name of its host may be unknown
            # here.
            near = tuple(address for address in found.addresses if address.startswith("unix://"))
            addresses = (*near, self._address(role, index))
            return Member(role, index, addresses, self._incarnations[who])

    def _address(self, role: str, index: int) -> str:
        address = self._spec.task_address(JOBS[role], index)
        place = place_of(role, index, at_of(self._spec, role, index))
        return at_place(f"tcp://{address}", place)

    def _part(self, role: str, index: int) -> None:
        began = time.monotonic()
        try:
            say_goodbye(self._address(role, index), self.secret, timeout=_SECONDS_TO_PART)
        except Exception as error:  # gone, stopped, or no member: not ours
            stands_still = time.monotonic() - began >= _SECONDS_TO_PART
            _log.log(
                logging.WARNING if stands_still else logging.INFO,
                "The %s %d has not heard that its cluster is closed: %s at %s.",
                JOBS[role],
                index,
                "it does not answer" if stands_still else error,
                self._spec.task_address(JOBS[role], index),
            )


def check_spec(spec: ClusterSpec) -> None:
    """Refuse a cluster that is not one of parameter servers.

    So is one with other jobs than TensorFlow's, no ps or no worker, two chiefs, or a task without
    an address.
    """
    strange = [job for job in spec.jobs if job not in _ALLOWED]
    if strange:
        raise ClusterSpecError(
            f"Disallowed task type found in the cluster: {strange[0]!r} in {spec}. Use the names "
            f"{', '.join(_ALLOWED)}."
        )
    for job in JOBS.values():
        if job not in spec.jobs or not spec.num_tasks(job):
            raise ClusterSpecError(
                f"There must be at least one {job} in the cluster, got {spec}. Add its address: "
                f'"{job}": ["host:port"].'
            )
    for job in spec.jobs:
        if job in _ALONE and spec.num_tasks(job) > 1:
            raise ClusterSpecError(
                f"The cluster {spec} has {spec.num_tasks(job)} tasks of {job!r}. Keep one address."
            )
        if None in spec.job_tasks(job):
            raise ClusterSpecError(
                f"The cluster {spec} lacks an address of {job!r}. List the addresses of all its "
                "tasks."
            )

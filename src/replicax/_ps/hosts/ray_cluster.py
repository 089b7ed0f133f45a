"""A cluster whose members are actors of a Ray cluster, to whose address this program connects.

Ray starts their processes, on any of its machines, and restarts those that have died. It carries
the secret and addresses only: members talk to each other by `_net`.
"""

from __future__ import annotations

import logging
import secrets
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, final

from replicax._core.errors import UnavailableError
from replicax._net import tries
from replicax._processes.ray_connection import SECONDS_TO_GROW, connect, lacking
from replicax._ps.hosts.cluster import (
    JOBS,
    SERVER,
    START_MEMBER,
    WORKER,
    Member,
    Members,
    gone,
    last_lines,
    load_starter,
    task_name,
)

_SECONDS_OF_SILENCE = 10.0


@final
class MemberActor:
    """Starts a member in a process of Ray, by a `module:function`, and says where it listens."""

    def __init__(self, starter: str, role: str, index: int, secret: bytes) -> None:
        import ray

        self._life = secrets.token_hex(8)
        host = ray.util.get_node_ip_address()
        self._endpoint = load_starter(starter)(role, index, secret, host=host, port=0)

    def where(self) -> tuple[str, tuple[str, ...]]:
        """A name of this process that no other has, and the addresses at which it listens."""
        return self._life, tuple(self._endpoint.addresses)


@final
class RayCluster:
    """Members as actors, spread over the machines of a Ray cluster.

    A program that is connected to Ray already keeps its connection and the runtime environment that
    it has chosen. The actors end with the cluster, or with this process; the connection stays.
    """

    def __init__(
        self,
        address: str,
        servers: Members,
        workers: Members,
        *,
        starter: str = START_MEMBER,
    ) -> None:
        connect(address)
        import ray

        self.where = f"on the Ray cluster {ray.get_runtime_context().gcs_address}"
        self.secret = secrets.token_bytes(32)
        self.num_servers = servers.count
        self.num_workers = workers.count
        self._kinds = {SERVER: servers, WORKER: workers}
        self._starter = starter
        self._lock = threading.Lock()
        self._actors: dict[tuple[str, int], Any] = {}
        self._last: dict[tuple[str, int], tuple[str, Member]] = {}
        # Not a bound method, so that a cluster that is not closed is closed when it is freed.
        self._end = weakref.finalize(self, _end_all, self._actors)
        for role, kind in self._kinds.items():
            for index in range(kind.count):
                self._start(role, index)

    def member(
        self, role: str, index: int, *, after: int = -1, timeout: float | None = None
    ) -> Member:
        import ray
        from ray.exceptions import ActorDiedError, RayError

        last = self._last.get((role, index))
        if last and last[1].incarnation > after:
            return last[1]
        seconds = SECONDS_TO_GROW if timeout is None else timeout
        is_warned, asked = False, None
        for left in tries(seconds):
            if not self._end.alive or not ray.is_initialized():
                raise gone(role, index, "the cluster has been closed.")
            asked = asked or self._actors[role, index].where.remote()
            try:
                life, addresses = ray.get(asked, timeout=min(left, _SECONDS_OF_SILENCE))
            except ActorDiedError as error:
                raise gone(role, index, last_lines(str(error))) from error
            except TimeoutError:  # it is being started, or stands still
                if left >= _SECONDS_OF_SILENCE and not is_warned:
                    is_warned = True
                    self._say_who_is_missing(role, index)
                continue
            except RayError:  # on the way to its next process
                asked = None
                continue
            member = self._note(role, index, life, addresses)
            if member.incarnation > after:
                return member
            asked = None
        raise UnavailableError(
            f"Ray has not started {'a new ' if after >= 0 else ''}{JOBS[role]} {index} within "
            f"{seconds:g} seconds: {lacking([self._kinds[role].resources])}. Check `ray status`; "
            "start more machines, or use fewer workers or servers.",
            task_name(role, index),
        )

    def kill(self, role: str, index: int) -> None:
        """See `Cluster.kill`. A process that stands still has five more seconds."""
        import ray

        if self._end.alive and ray.is_initialized():
            ray.kill(self._actors[role, index], no_restart=False)

    def add_worker(self) -> int:
        with self._lock:
            index, self.num_workers = self.num_workers, self.num_workers + 1
            self._start(WORKER, index)
        return index

    def close(self) -> None:
        """End all members; a second call does nothing."""
        self._end()

    def _start(self, role: str, index: int) -> None:
        import ray

        kind = self._kinds[role]
        resources = dict(kind.resources)
        self._actors[role, index] = (
            ray.remote(MemberActor)
            .options(
                num_cpus=resources.pop("CPU", 0),
                num_gpus=resources.pop("GPU", 0),
                resources=resources,
                max_restarts=-1,
                max_task_retries=-1,
                scheduling_strategy="SPREAD",
                runtime_env={"env_vars": dict(kind.environment)},
            )
            .remote(self._starter, role, index, self.secret)
        )

    def _note(self, role: str, index: int, life: str, addresses: tuple[str, ...]) -> Member:
        """Count the processes in which the member was seen."""
        with self._lock:
            last = self._last.get((role, index))
            if last is None or last[0] != life:
                incarnation = last[1].incarnation + 1 if last else 0
                last = life, Member(role, index, addresses, incarnation)
                self._last[role, index] = last
            return last[1]

    def _say_who_is_missing(self, role: str, index: int) -> None:
        missing = [self._kinds[its].resources for its, _ in self._actors.keys() - self._last.keys()]
        if missing:
            logging.getLogger("replicax").warning(
                "Waiting for %s %d; the Ray cluster was %s.", JOBS[role], index, lacking(missing)
            )


def _end_all(actors: Mapping[Any, Any]) -> None:
    import ray

    for actor in actors.values() if ray.is_initialized() else ():
        with suppress(Exception):  # the connection may be broken: then Ray ends them
            ray.kill(actor)

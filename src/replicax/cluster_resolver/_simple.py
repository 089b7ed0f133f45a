"""A cluster that the program itself describes, and several descriptions joined into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from replicax._core.errors import ClusterSpecError
from replicax.cluster_resolver._base import ClusterResolver, master_url
from replicax.cluster_resolver._spec import Cluster, ClusterSpec, of_run


@final
class SimpleClusterResolver(ClusterResolver):
    """A cluster that is described by arguments only.

    Args:
        cluster_spec: The cluster, a `ClusterSpec` or what one is made of.
        master: The answer of `master()` when no task is named, without the protocol.
        task_type: The job of this process.
        task_id: Its number in the job.
        environment: The value of `environment`.
        num_accelerators: The answer of `num_accelerators()`, such as `{"GPU": 2}`.
        rpc_layer: The protocol, such as `"grpc"`.

    Raises:
        ClusterSpecError: If the cluster is not one.

    Example:
        >>> from replicax.cluster_resolver import SimpleClusterResolver
        >>> cluster = {"worker": ["host0:2222", "host1:2222"]}
        >>> resolver = SimpleClusterResolver(cluster, task_type="worker", task_id=0)
        >>> resolver.master("worker", 1)
        'host1:2222'
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec | Cluster,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        self._cluster_spec = ClusterSpec(cluster_spec)
        self._master = master
        self._task_type = task_type
        self._task_id = task_id
        self._environment = environment
        self._num_accelerators = dict(num_accelerators or {})
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """The cluster that was given."""
        return self._cluster_spec

    def _address(self, job: str | None, index: int | None) -> str:
        if job is None or index is None:
            return self._master
        return self._cluster_spec.task_address(job, index)

    def _accelerators(self) -> Mapping[str, int]:
        return self._num_accelerators


@final
class UnionResolver(ClusterResolver):
    """Several resolvers as one: their tasks together, everything else from the first.

    A job has the tasks of the first resolver, then the tasks of the next, and so on. If one
    of them knows only some tasks of a job, the indices stay as they are and must differ.
    **Differs from TF:** a task that several resolvers list, at one address, is there once;
    `task_id=0` is an override like any other.

    Args:
        resolvers: At least one.
        rpc_layer: Instead of the first one's.
        task_type: Instead of the first one's.
        task_id: Instead of the first one's.

    Raises:
        ClusterSpecError: If there is none.

    Example:
        >>> from replicax.cluster_resolver import SimpleClusterResolver, UnionResolver
        >>> here = SimpleClusterResolver({"worker": ["host0:2222"]}, task_type="worker", task_id=0)
        >>> there = SimpleClusterResolver({"worker": ["host1:2222"], "ps": ["host2:2222"]})
        >>> UnionResolver(here, there).cluster_spec()
        ClusterSpec({'ps': ['host2:2222'], 'worker': ['host0:2222', 'host1:2222']})
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        if not resolvers:
            raise ClusterSpecError(
                "`UnionResolver` got no resolver. Pass one or more: `UnionResolver(first, second)`."
            )
        self._resolvers = resolvers
        self._rpc_layer = rpc_layer
        self._task_type = task_type
        self._task_id = task_id

    def cluster_spec(self) -> ClusterSpec:
        """The tasks of all resolvers."""
        specs = [resolver.cluster_spec() for resolver in self._resolvers]
        clusters = [spec.as_dict() for spec in specs]
        jobs = {job for cluster in clusters for job in cluster}
        union = {job: _union([c[job] for c in clusters if job in c]) for job in jobs}
        return of_run(union, specs[0].run)

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The address of the named task; else the answer of the first resolver."""
        if task_type is not None and task_id is not None:
            address = self.cluster_spec().task_address(task_type, task_id)
            return master_url(address, rpc_layer or self.rpc_layer)
        return self._resolvers[0].master(rpc_layer=rpc_layer or self._rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: object = None,
    ) -> Mapping[str, int]:
        """The answer of the first resolver."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)

    @property
    def environment(self) -> str | None:
        """The answer of the first resolver."""
        return self._resolvers[0].environment

    def _found_task(self) -> tuple[str | None, int | None]:
        return self._resolvers[0].task_type, self._resolvers[0].task_id

    def _found_rpc_layer(self) -> str | None:
        return self._resolvers[0].rpc_layer


def _union(parts: list[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    """The tasks of one job, from all resolvers that have it."""
    lists = [part for part in parts if isinstance(part, list)]
    if len(lists) == len(parts):
        return list(dict.fromkeys(address for part in lists for address in part))  # keeps order
    union: dict[int, str] = {}
    for part in parts:
        numbered = dict(enumerate(part)) if isinstance(part, list) else part
        for index, address in numbered.items():
            if union.setdefault(index, address) != address:
                raise ClusterSpecError(
                    f"Two resolvers give index {index} different addresses, {union[index]!r} and "
                    f"{address!r}. Use different indices, or list all tasks in one resolver."
                )
    return union

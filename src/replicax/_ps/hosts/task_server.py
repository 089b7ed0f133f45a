"""`Server`: this process as a worker or a parameter server of a cluster that `TF_CONFIG` describes.

The counterpart of `tf.distribute.Server`. `member.py` is what a member does; `given_cluster.py`
finds it and sends it home.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import ClusterSpecError, UsageError
from replicax._net import interface_of
from replicax._processes.rules import sigterm_as_exit
from replicax._ps.hosts.cluster import JOBS, ROLES, START_MEMBER, at_of, load_starter
from replicax._ps.hosts.given_cluster import cluster_secret, host_of
from replicax.cluster_resolver import ClusterResolver, ClusterSpec, detect

if TYPE_CHECKING:
    from replicax._ps.hosts.member import Endpoint

_log = logging.getLogger("replicax")
# A process serves once: afterwards its work is done.
_went_home = threading.Event()


@final
@dataclass(frozen=True)
class ServerDef:
    """Which task a server is: its job is "worker" or "ps"; nothing depends on the protocol."""

    cluster: ClusterSpec
    job_name: str
    task_index: int
    protocol: str = "grpc"


@final
class Server:
    """A worker or parameter server in this process, for the coordinator of its cluster.

    **Differs from TF:** `join` returns when the coordinator closes the cluster; TensorFlow's never
    does. It listens on the loopback interface if the task's address is there, and lets in only who
    knows the cluster's secret. `protocol` and `config` are not used.

    Args:
        server_or_cluster_def: The cluster: a `ClusterSpec` or what one is made of, a
            `ClusterResolver`, which also says which task this is, or a `server_def`.
        job_name: `"worker"` or `"ps"`; by default what is said with the cluster, or its only job.
        task_index: Its number in the job; by default what is said with the cluster, or that of the
            job's only task.
        protocol: For the signature of TensorFlow.
        config: For the signature of TensorFlow.
        start: Whether to start it now.

    Raises:
        ClusterSpecError: If the cluster has no such task, or there is no secret.

    Example:
        >>> import replicax as rx
        >>> cluster = {"worker": ["localhost:2222"], "ps": ["localhost:2223"]}
        >>> server = rx.Server(cluster, "worker", 0, start=False)
        >>> server.target
        'tcp://localhost:2222'
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: object = None,
        start: bool = True,
    ) -> None:
        self.server_def = _server_def(server_or_cluster_def, job_name, task_index, protocol)
        self._endpoint: Endpoint | None = None
        self._closing = threading.Lock()
        self._ended = threading.Event()
        if start:
            self.start()

    @staticmethod
    def create_local_server(config: object = None, start: bool = True) -> Server:
        """A worker on a free port of the loopback interface, in a cluster of its own."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"localhost:{free.getsockname()[1]}"
        return Server({"worker": [address]}, "worker", 0, config=config, start=start)

    @property
    def target(self) -> str:
        """The address at which it is reached."""
        definition = self.server_def
        address = definition.cluster.task_address(definition.job_name, definition.task_index)
        return f"tcp://{address}"

    def start(self) -> None:
        """Begin to serve; a second call does nothing."""
        if self._endpoint is not None:
            return
        spec, job, index = (
            self.server_def.cluster,
            self.server_def.job_name,
            self.server_def.task_index,
        )
        address = spec.task_address(job, index)
        port = int(address.rpartition(":")[2])
        role, host = ROLES[job], interface_of(host_of(spec, job, index))
        starter = load_starter(START_MEMBER)
        try:
            self._endpoint = starter(
                role,
                index,
                cluster_secret(spec),
                {},
                host=host,
                port=port,
                at=at_of(spec, role, index),
            )
        except OSError as error:
            raise ClusterSpecError(
                f"Cannot serve {job} {index} at {self.target}: {error}. End the process that "
                "listens there, or change the address for all processes."
            ) from error
        _log.info("Serving as %s %d at %s.", job, index, self.target)
        # Even if nobody joins it, as in one process with all servers of a cluster.
        threading.Thread(target=self._see_off, name="replicax-server", daemon=True).start()

    def join(self) -> None:
        """Serve until the coordinator closes the cluster, or this process is asked to end."""
        if self._endpoint is None:
            raise UsageError("Cannot join a server with start=False. Call `server.start()` first.")
        try:
            with sigterm_as_exit():
                self._ended.wait()
        finally:
            self._close(self._endpoint)
        _went_home.set()

    def _see_off(self) -> None:
        assert self._endpoint is not None
        self._endpoint.wait()
        self._close(self._endpoint)

    def _close(self, endpoint: Endpoint) -> None:
        with self._closing:
            if not self._ended.is_set():
                endpoint.close()
                self._ended.set()


def serve_this_task_if_member(resolver: ClusterResolver | None = None) -> None:
    """Serve, and end this process, if it is a worker or parameter server of a cluster.

    So one program can be all tasks of a cluster: the code that follows is for the coordinator. By
    default the environment describes the cluster. The process ends with 0 when the coordinator has
    closed the cluster.
    """
    resolver = resolver or detect()
    if resolver is None or resolver.task_type not in ROLES:
        return
    if "ps" not in resolver.cluster_spec().jobs:  # workers alone: of another strategy
        return
    if not _went_home.is_set():
        Server(resolver).join()
    raise SystemExit(0)


def _server_def(
    given: Any, job_name: str | None, task_index: int | None, protocol: str | None
) -> ServerDef:
    if isinstance(given, ServerDef):
        spec, job, index = given.cluster, given.job_name, given.task_index
    elif isinstance(given, ClusterResolver):
        spec, job, index = given.cluster_spec(), given.task_type, given.task_id
    else:
        spec, job, index = ClusterSpec(_as_mapping(given)), None, None
    job = job_name if job_name is not None else job
    if job is None and len(spec.jobs) == 1:
        job = spec.jobs[0]
    index = task_index if task_index is not None else index
    if index is None and job in spec.jobs and spec.num_tasks(job) == 1:
        index = spec.task_indices(job)[0]
    if job is None or index is None:
        raise ClusterSpecError(
            f"Cannot tell which task of {spec} this server is: job_name={job!r}, "
            f"task_index={index!r}. Pass both."
        )
    if job not in ROLES:
        raise ClusterSpecError(
            f"Cannot start a server for {job} {index}: only {' and '.join(JOBS.values())} tasks "
            "serve. Create the strategy in this process instead."
        )
    spec.task_address(job, index)
    return ServerDef(spec, job, index, protocol or "grpc")


def _as_mapping(given: Any) -> Any:
    """The mapping of a cluster, also from TensorFlow's `ClusterSpec`."""
    if isinstance(given, ClusterSpec | Mapping) or not hasattr(given, "as_dict"):
        return given
    return given.as_dict()

"""A cluster whose processes somebody else starts and restarts, at described addresses.

Each of them runs `rx.Server(...).join()`, the counterpart of `tf.distribute.Server`, or creates the
same strategy. `GivenCluster` is the coordinator's side. `member.py` is what a member does.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import ClusterSpecError, UnavailableError, UsageError
from replicax._net import (
    HOW_TO,
    ConnectionLost,
    at_place,
    given_secret,
    interface_of,
    is_loopback,
    secret_of_this_machine,
    tries,
)
from replicax._processes.rules import sigterm_as_exit
from replicax._ps.hosts.cluster import (
    JOBS,
    ROLES,
    START_MEMBER,
    Member,
    at_of,
    load_starter,
    place_of,
    task_name,
)
from replicax._ps.hosts.contact import About, ask_about, kill, say_goodbye
from replicax.cluster_resolver import ClusterResolver, ClusterSpec, detect
from replicax.cluster_resolver._spec import ROLES as ALL_JOBS
from replicax.cluster_resolver._spec import check_alone

if TYPE_CHECKING:
    from replicax._ps.hosts.member import Post

_log = logging.getLogger("replicax")
_PATIENCE = 3600.0  # as in TensorFlow: somebody may have to repair a machine first
_SECONDS_TO_ANSWER = 5.0
_SECONDS_TO_PART = 2.0
_SECONDS_OF_SILENCE = 10.0
# A process serves once: afterwards its work is done.
_went_home = threading.Event()


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
        hosts = [host_of(spec, job, index) for job in ROLES for index in spec.task_indices(job)]
        self.where = f"on {', '.join(dict.fromkeys(hosts))}"
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
        is_warned = False
        for left in tries(seconds):
            if self._closed:
                break
            if seconds - left >= _SECONDS_OF_SILENCE and not is_warned:
                is_warned = True
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
            # By the name in the description: the host's own name may be unknown here.
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
    strange = [job for job in spec.jobs if job not in ALL_JOBS]
    if strange:
        raise ClusterSpecError(
            f"Disallowed task type found in the cluster: {strange[0]!r} in {spec}. Use the names "
            f"{', '.join(ALL_JOBS)}."
        )
    check_alone(spec)
    for job in JOBS.values():
        if job not in spec.jobs or not spec.num_tasks(job):
            raise ClusterSpecError(
                f"There must be at least one {job} in the cluster, got {spec}. Add its address: "
                f'"{job}": ["host:port"].'
            )
    for job in spec.jobs:
        if None in spec.job_tasks(job):
            raise ClusterSpecError(
                f"The cluster {spec} lacks an address of {job!r}. List the addresses of all its "
                "tasks."
            )


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
        job_name: `"worker"` or `"ps"`; by default as the cluster says, or its only job.
        task_index: Its number in the job; by default as the cluster says, or the number of the
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
        self._endpoint: Post | None = None
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

    def _close(self, endpoint: Post) -> None:
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
        try:
            Server(resolver).join()
        except KeyboardInterrupt:  # Ctrl-C reaches all tasks; the coordinator shows where it was
            raise SystemExit(128 + signal.SIGINT) from None
    raise SystemExit(0)


def _server_def(
    given: Any, job_name: str | None, task_index: int | None, protocol: str | None
) -> ServerDef:
    if isinstance(given, ServerDef):
        spec, job, index = given.cluster, given.job_name, given.task_index
    elif isinstance(given, ClusterResolver):
        spec, job, index = given.cluster_spec(), given.task_type, given.task_id
    else:
        if hasattr(given, "as_dict") and not isinstance(given, ClusterSpec):  # TensorFlow's
            given = given.as_dict()
        spec, job, index = ClusterSpec(given), None, None
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

"""`ClusterResolver`: the questions that a strategy asks about the cluster and about itself."""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping

from replicax._core.errors import ClusterSpecError
from replicax.cluster_resolver._spec import ClusterSpec, JaxProcess, Task, cluster_name, jax_process


def text_of(environ: Mapping[str, str], name: str, *, set_by: str) -> str:
    """The value of a variable that must be there and not empty.

    `set_by` is the end of the sentence "It is set by …".
    """
    value = environ.get(name, "").strip()
    if not value:
        raise ClusterSpecError(
            f"{name} is not set. It is set by {set_by}. Start the program that way, or describe "
            "the cluster in TF_CONFIG."
        )
    return value


def number_of(environ: Mapping[str, str], name: str, *, set_by: str) -> int:
    """The value of a variable that must be there and is a whole number from 0."""
    value = text_of(environ, name, set_by=set_by)
    if not value.isdecimal():
        raise ClusterSpecError.of(
            name,
            "an integer from 0",
            value,
            f"{set_by} sets it; remove any other setting.",
        )
    return int(value)


class ClusterResolver(abc.ABC):
    """The tasks of a cluster, and the task of this process: the base of all resolvers.

    A subclass defines `cluster_spec`. It sets `task_type`, `task_id` and `rpc_layer` if it knows
    them. **Differs from TF:** `master` need not be defined; `num_accelerators` does not look at
    devices, because that would start JAX before this process has joined its cluster.

    Example:
        >>> from replicax.cluster_resolver import ClusterResolver, ClusterSpec
        >>> class TwoHosts(ClusterResolver):
        ...     def cluster_spec(self):
        ...         return ClusterSpec({"worker": ["host0:2222", "host1:2222"]})
        >>> resolver = TwoHosts()
        >>> resolver.task_type, resolver.task_id = "worker", 1
        >>> resolver.master()
        'host1:2222'
    """

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None
    _environment: str | None = ""
    _environ: Mapping[str, str] | None = None

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """The cluster as it is described now."""

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The address of a task, by default this one, with the protocol in front.

        Args:
            task_type: The job of the task.
            task_id: Its number in the job.
            rpc_layer: The protocol, by default the resolver's.

        Returns:
            Such as `"grpc://host0:2222"`; empty if nobody said which task.
        """
        address = self._address(task_type, task_id)
        return "" if address is None else master_url(address, rpc_layer or self.rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: object = None,
    ) -> Mapping[str, int]:
        """How many accelerators of each kind a task has, if the description says so.

        Args:
            task_type: The job of the task.
            task_id: Its number in the job.
            config_proto: Not used; it is there for the signature of `tf.distribute`.

        Returns:
            Such as `{"GPU": 2}`; empty if the description does not say it.
        """
        return self._accelerators()

    def jax_process(self) -> JaxProcess | None:
        """The place of this process in its JAX cluster; None if it works alone.

        Raises:
            ClusterSpecError: If nothing says which task this process is.
        """
        spec = self.cluster_spec()
        if not spec.jobs:
            return None
        task = task_of(self)
        return jax_process(spec, task) if task.job in ("chief", "worker") else None

    def cluster_name(self) -> str:
        """The name of the cluster for those that train together; see the function."""
        return cluster_name(self.cluster_spec(), "chief", "worker")

    @property
    def environment(self) -> str | None:
        """The value that was given; empty is the environment of TensorFlow outside Google."""
        return self._environment

    @property
    def task_type(self) -> str | None:
        """The job of this process, or None if nothing says it. It can be set."""
        if self._task_type is not None:
            return str(self._task_type)
        return self._found_task()[0]

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The number of this process in its job, or None if nothing says it. It can be set."""
        if self._task_id is not None:
            return int(self._task_id)
        return self._found_task()[1]

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol that `master` puts in front of an address. It can be set."""
        return self._found_rpc_layer() if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    def _address(self, job: str | None, index: int | None) -> str | None:
        """The address of a task, by default this one; None if there is none to reach."""
        job = self.task_type if job is None else job
        index = self.task_id if index is None else index
        return (
            None if job is None or index is None else self.cluster_spec().task_address(job, index)
        )

    def _accelerators(self) -> Mapping[str, int]:
        return {}

    def _found_task(self) -> tuple[str | None, int | None]:
        """The job and number that were found for this process; a value that was set wins."""
        return None, None

    def _found_rpc_layer(self) -> str | None:
        """The protocol that was found; a value that was set wins."""
        return None

    def _variables(self) -> Mapping[str, str]:
        """The environment variables as they are now."""
        return os.environ if self._environ is None else self._environ


def task_of(resolver: ClusterResolver) -> Task:
    """The task of this process.

    Args:
        resolver: The description of the cluster.

    Raises:
        ClusterSpecError: If the resolver does not know it.

    Example:
        >>> from replicax.cluster_resolver import TFConfigClusterResolver, task_of
        >>> environ = {"TF_CONFIG": '{"task": {"type": "worker", "index": 1}}'}
        >>> task_of(TFConfigClusterResolver(environ=environ))
        Task(job='worker', index=1)
    """
    job, index = resolver.task_type, resolver.task_id
    if job is None or index is None:
        raise ClusterSpecError(
            f"This process does not know its task: {type(resolver).__name__} has "
            f"task_type={job!r} and task_id={index!r}. Set both on the resolver, or in TF_CONFIG: "
            '"task": {"type": "worker", "index": 0}.'
        )
    return Task(job, index)


def master_url(address: str, rpc_layer: str | None) -> str:
    """An address with its protocol, if there is one."""
    return f"{rpc_layer}://{address}" if rpc_layer else address

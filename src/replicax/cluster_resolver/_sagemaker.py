"""The cluster of a SageMaker training job, from the variables of its training toolkit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast, final

from replicax._core.errors import ClusterSpecError
from replicax.cluster_resolver._base import ClusterResolver
from replicax.cluster_resolver._spec import ClusterSpec
from replicax.cluster_resolver._variables import number_of, text_of

HOSTS = "SM_HOSTS"
CURRENT_HOST = "SM_CURRENT_HOST"

_TOOLKIT = "SageMaker's training toolkit, in the container of a training job"


@final
class SageMakerClusterResolver(ClusterResolver):
    """The hosts of a SageMaker training job, each a worker, sorted by name.

    **Differs from TF:** a host that is not in the list is an error, not an empty cluster.

    Args:
        port: The port of every worker.
        task_type: Instead of `"worker"`.
        task_id: Instead of the place of this host in the list.
        rpc_layer: The protocol of `master()`.
        environment: The value of `environment`.
        environ: The variables to read; by default those of the process.

    Raises:
        ClusterSpecError: At any question, if this is no training job.

    Example:
        >>> from replicax.cluster_resolver import SageMakerClusterResolver
        >>> environ = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
        >>> resolver = SageMakerClusterResolver(environ=environ)
        >>> resolver.cluster_spec(), resolver.task_id
        (ClusterSpec({'worker': ['algo-1:2223', 'algo-2:2223']}), 1)
    """

    def __init__(
        self,
        port: int = 2223,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._port = port
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment
        self._environ = environ

    def cluster_spec(self) -> ClusterSpec:
        """The addresses of all hosts."""
        return ClusterSpec({"worker": [f"{host}:{self._port}" for host in self._hosts()]})

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The address of a task, by default this one; empty if there is only one host."""
        alone = len(self._hosts()) == 1
        return "" if alone else super().master(task_type, task_id, rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: object = None,
    ) -> Mapping[str, int]:
        """The GPUs of a host; empty if it has none."""
        environ = self._variables()
        gpus = number_of(environ, "SM_NUM_GPUS", set_by=_TOOLKIT) if "SM_NUM_GPUS" in environ else 0
        return {"GPU": gpus} if gpus else {}

    @property
    def environment(self) -> str | None:
        """The value that was given."""
        return self._environment

    def _found_task(self) -> tuple[str | None, int | None]:
        hosts = self._hosts()
        here = text_of(self._variables(), CURRENT_HOST, set_by=_TOOLKIT)
        if here not in hosts:
            raise ClusterSpecError.of(
                CURRENT_HOST,
                f"one of {HOSTS}, {hosts}",
                here,
                "Leave both as SageMaker sets them, or pass task_id.",
            )
        return "worker", hosts.index(here)

    def _hosts(self) -> list[str]:
        text = text_of(self._variables(), HOSTS, set_by=_TOOLKIT)
        try:
            hosts = json.loads(text)
        except json.JSONDecodeError:
            hosts = None
        if not isinstance(hosts, list):
            raise ClusterSpecError.of(
                HOSTS,
                'a JSON list of host names, such as ["algo-1", "algo-2"]',
                text,
                "Leave it as SageMaker sets it.",
            )
        return sorted(str(host) for host in cast("list[object]", hosts))

"""The cluster that `TF_CONFIG` describes: the usual way to tell a process its cluster.

`_tf_config.py` defines the variable's contents and the errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

from replicax.cluster_resolver._base import ClusterResolver, task_of
from replicax.cluster_resolver._tf_config import TF_CONFIG, TFConfig

if TYPE_CHECKING:
    from replicax.cluster_resolver._spec import ClusterSpec


@final
class TFConfigClusterResolver(ClusterResolver):
    """The cluster of the environment variable `TF_CONFIG`, read anew at every question.

    **Differs from TF:** every question checks all of `TF_CONFIG`. An empty variable is like none.

    Args:
        task_type: Instead of the type in `TF_CONFIG`.
        task_id: Instead of the index in `TF_CONFIG`.
        rpc_layer: Instead of the one in `TF_CONFIG`.
        environment: The value of `environment`.
        environ: The variables to read; by default those of the process.

    Raises:
        ClusterSpecError: At any question, if `TF_CONFIG` is wrong. The message shows where.

    Example:
        >>> from replicax.cluster_resolver import TFConfigClusterResolver
        >>> text = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
        >>> resolver = TFConfigClusterResolver(environ={"TF_CONFIG": text})
        >>> resolver.cluster_spec(), resolver.task_type, resolver.task_id
        (ClusterSpec({'worker': ['a:1', 'b:1']}), 'worker', 1)
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment
        self._environ = environ

    def cluster_spec(self) -> ClusterSpec:
        """The cluster in `TF_CONFIG`, empty if there is none."""
        return self._read().spec

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """`session_master` if it is given; empty if the process is alone; else the address.

        Raises:
            ClusterSpecError: If nobody said which task, or the cluster has no such task.
        """
        config = self._read()
        if config.session_master is not None:
            return config.session_master
        if len(config.spec.tasks) <= 1:
            return ""
        if task_type is None or task_id is None:
            task_of(self)
        return super().master(task_type, task_id, rpc_layer)

    @property
    def environment(self) -> str | None:
        """The value that was given."""
        return self._environment

    def _found_task(self) -> tuple[str | None, int | None]:
        task = self._read().task
        return (task.job, task.index) if task else (None, None)

    def _found_rpc_layer(self) -> str | None:
        return self._read().rpc_layer

    def _read(self) -> TFConfig:
        return TFConfig.from_json(self._variables().get(TF_CONFIG, ""))

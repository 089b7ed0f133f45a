"""The secret of a cluster that is not started here, which only its processes know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax._core.errors import ClusterSpecError
from replicax._net import HOW_TO, given_secret, is_loopback, secret_of_this_machine

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterSpec


def cluster_secret(spec: ClusterSpec) -> bytes:
    """The secret of a cluster from the environment; from a file if all of it is on this machine."""
    if given := given_secret():
        return given.value
    far = [str(task) for task in spec.tasks if not is_loopback(host_of(spec, task.job, task.index))]
    if far:
        raise ClusterSpecError(
            "The processes of a cluster on several machines share a secret. "
            f"Received: none in the environment, and {', '.join(far)} elsewhere. "
            f"Who can reach them could otherwise run code there. {HOW_TO}"
        )
    return secret_of_this_machine().value


def host_of(spec: ClusterSpec, job: str, index: int) -> str:
    """The host of a task, without the brackets of IPv6."""
    return spec.task_address(job, index).rpartition(":")[0].strip("[]")

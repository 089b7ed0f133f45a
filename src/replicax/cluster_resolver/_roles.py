"""The roles of tasks: the chief, those that train together, and their processes of JAX.

A *chief* is worker 0 in effect. A *ps* holds variables and an *evaluator* works alone, so neither
is counted among the workers. Without a chief, worker 0 does the chief's work.
"""

from __future__ import annotations

from typing import NamedTuple

from replicax._core.errors import ClusterSpecError
from replicax.cluster_resolver._spec import ClusterSpec, Task

ROLES = ("chief", "worker", "ps", "evaluator")
_ALONE = ("chief", "evaluator")


class JaxProcess(NamedTuple):
    """The arguments of `jax.distributed.initialize`, in its order."""

    coordinator_address: str
    num_processes: int
    process_id: int


def jax_process(spec: ClusterSpec, task: Task) -> JaxProcess:
    """The process of a JAX cluster that a task starts as: the chief first, then the workers.

    Parameter servers and the evaluator are no part of the JAX cluster.

    Args:
        spec: The cluster. It must know all its workers.
        task: The task of this process.

    Returns:
        The address of process 0, where JAX's coordination service listens; the number of
        processes; and the number of this one.

    Raises:
        ClusterSpecError: If the task is not in the cluster, does not train, or some worker's
            address is not known.

    Example:
        >>> from replicax.cluster_resolver import ClusterSpec, Task, jax_process
        >>> spec = ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]})
        >>> jax_process(spec, Task("worker", 0))
        JaxProcess(coordinator_address='a:1', num_processes=3, process_id=1)
    """
    if task.job not in ("chief", "worker"):
        raise ClusterSpecError(
            f"{task} is neither the chief nor a worker, so it does not train with them. Start it "
            "without MultiWorkerMirroredStrategy, or as a worker."
        )
    process_id = id_in_cluster(spec, task)
    unknown = [
        f"{job} {i}" for job in spec.jobs for i, a in enumerate(spec.job_tasks(job)) if not a
    ]
    if unknown:
        raise ClusterSpecError(
            f"The cluster {spec} has no address for {', '.join(unknown)}. List the addresses of "
            "every task."
        )
    first = Task("chief" if _count(spec, "chief") else "worker", 0)
    return JaxProcess(
        spec.task_address(first.job, first.index), worker_count(spec, task), process_id
    )


def is_chief(spec: ClusterSpec, task: Task) -> bool:
    """Whether a task does the work that is done once, such as writing checkpoints.

    Args:
        spec: The cluster.
        task: The task that is asked about.

    Returns:
        True for the chief, for worker 0 if there is no chief, and for the evaluator, which is
        its own chief.

    Raises:
        ClusterSpecError: If the cluster has no such task, or more than one chief.

    Example:
        >>> from replicax.cluster_resolver import ClusterSpec, Task, is_chief
        >>> is_chief(ClusterSpec({"worker": ["a:1", "b:1"]}), Task("worker", 0))
        True
        >>> is_chief(ClusterSpec({"chief": ["a:1"], "worker": ["b:1"]}), Task("worker", 0))
        False
    """
    check_task(spec, task)
    return task.job in _ALONE or (task == Task("worker", 0) and not _count(spec, "chief"))


def worker_count(spec: ClusterSpec, task: Task) -> int:
    """The number of tasks that train with this one, itself included: the chief and the workers.

    Args:
        spec: The cluster.
        task: The task that is asked about.

    Returns:
        The number; 1 for an evaluator, which works alone.

    Raises:
        ClusterSpecError: If the cluster has no such task, or the task is a parameter server.

    Example:
        >>> from replicax.cluster_resolver import ClusterSpec, Task, worker_count
        >>> worker_count(ClusterSpec({"chief": ["a:1"], "worker": ["b:1"]}), Task("worker", 0))
        2
    """
    _check_computes(spec, task)
    return 1 if task.job == "evaluator" else _count(spec, "chief") + _count(spec, "worker")


def id_in_cluster(spec: ClusterSpec, task: Task) -> int:
    """A task's number among those that train together: the chief has 0, workers come after it.

    Args:
        spec: The cluster.
        task: The task that is asked about.

    Returns:
        A number from 0 to `worker_count(spec, task) - 1`.

    Raises:
        ClusterSpecError: If the cluster has no such task, or the task is a parameter server.

    Example:
        >>> from replicax.cluster_resolver import ClusterSpec, Task, id_in_cluster
        >>> id_in_cluster(ClusterSpec({"chief": ["a:1"], "worker": ["b:1"]}), Task("worker", 0))
        1
    """
    _check_computes(spec, task)
    return task.index + (_count(spec, "chief") if task.job == "worker" else 0)


def check_task(spec: ClusterSpec, task: Task) -> None:
    """Refuse a cluster with roles that TensorFlow does not have, and a task outside the cluster."""
    strange = [job for job in [*spec.jobs, task.job] if job not in ROLES]
    if strange:
        raise ClusterSpecError(
            f"Job {strange[0]!r} of {spec}, {task} is none of {', '.join(ROLES)}. Rename the job."
        )
    check_alone(spec)
    # An evaluator may be left out of the cluster it evaluates.
    if not (task == Task("evaluator", 0) and "evaluator" not in spec.jobs):
        spec.task_address(task.job, task.index)


def check_alone(spec: ClusterSpec) -> None:
    """Refuse a second chief or evaluator."""
    for job in _ALONE:
        if _count(spec, job) > 1:
            raise ClusterSpecError(
                f"There must be at most one {job!r} task, got {spec.as_dict()[job]}. Keep one "
                "address; the others may be workers."
            )


def _check_computes(spec: ClusterSpec, task: Task) -> None:
    check_task(spec, task)
    if task.job == "ps":
        raise ClusterSpecError(
            f"{task} is a parameter server, which is not counted among the workers. Ask for the "
            "chief, a worker or the evaluator."
        )


def _count(spec: ClusterSpec, job: str) -> int:
    return spec.num_tasks(job) if job in spec.jobs else 0

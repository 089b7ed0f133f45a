"""The tasks of a cluster, their addresses and their roles: `ClusterSpec` and `Task`, as data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple, TypeAlias, cast, final

from replicax._core.errors import ClusterSpecError

Cluster: TypeAlias = Mapping[str, Sequence[str] | Mapping[int, str] | Mapping[str, str]]
_Tasks: TypeAlias = tuple[tuple[int, str], ...]

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:/\[\]]+):([0-9]+)")
_DIGITS = 32  # of a digest: 128 bits
_SHOWN = 160  # characters
_EXAMPLE = '{"worker": ["host0:2222", "host1:2222"]}'


@final
@dataclass(frozen=True)
class Task:
    """One process of a cluster: its job and its number in that job.

    Args:
        job: The role that it shares with others: `"chief"`, `"worker"`, `"ps"` or `"evaluator"`.
        index: Its number in the job, from 0.

    Raises:
        ClusterSpecError: If the job is no name or the index is no number from 0.

    Example:
        >>> from replicax.cluster_resolver import Task
        >>> print(Task("worker", 1))
        worker 1
    """

    job: str
    index: int

    def __post_init__(self) -> None:
        if not _is_name(self.job):
            raise ClusterSpecError.of("job", 'a name, as in `Task("worker", 0)`', self.job)
        if not _is_index(self.index):
            raise ClusterSpecError.of("index", "an integer from 0", self.index)

    def __str__(self) -> str:
        return f"{self.job} {self.index}"


@final
@dataclass(frozen=True, init=False, repr=False)
class ClusterSpec:
    """The tasks of a cluster: for each job, the addresses where its tasks listen.

    The counterpart of `tf.train.ClusterSpec`.
    **Differs from TF:** it does not change, has a hash, and is checked when it is made: every
    address has a port, and no two tasks have the same one. `jobs` are sorted.

    Args:
        cluster: For each job a list of addresses `host:port`; or a mapping from the index of a
            task to its address, if only some of the job's tasks are known.

    Raises:
        ClusterSpecError: If it is anything else.

    Example:
        >>> from replicax.cluster_resolver import ClusterSpec
        >>> spec = ClusterSpec({"worker": ["host0:2222", "host1:2222"], "ps": ["host2:2222"]})
        >>> spec.jobs
        ['ps', 'worker']
        >>> spec.task_address("worker", 1)
        'host1:2222'
    """

    _jobs: tuple[tuple[str, _Tasks], ...]
    run: str = field(default="", compare=False)
    """The scheduler's name for this run of the cluster; empty if it gives none."""

    def __init__(self, cluster: Cluster | ClusterSpec) -> None:
        is_spec = isinstance(cluster, ClusterSpec)
        object.__setattr__(self, "_jobs", cluster._jobs if is_spec else _read_jobs(cluster))
        object.__setattr__(self, "run", cluster.run if is_spec else "")

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return [job for job, _ in self._jobs]

    @property
    def tasks(self) -> list[Task]:
        """All tasks of all jobs."""
        return [Task(job, index) for job, tasks in self._jobs for index, _ in tasks]

    def num_tasks(self, job_name: str) -> int:
        """How many tasks of a job are known."""
        return len(self._tasks_of(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The numbers of a job's known tasks."""
        return list(self._tasks_of(job_name))

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job by number, with None where a task is not known."""
        tasks = self._tasks_of(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of one task.

        Raises:
            ClusterSpecError: If there is no such job or task.
        """
        tasks = self._tasks_of(job_name)
        if task_index not in tasks:
            raise ClusterSpecError(
                f"Job {job_name!r} has no task {task_index}, only {list(tasks)}. Count from 0, or "
                f"add the task's address to the cluster: {self}."
            )
        return tasks[task_index]

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """The addresses by job: a list, or a dict by index if some tasks are not known."""
        return {job: _list_or_dict(tasks) for job, tasks in self._jobs}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __contains__(self, task: Task) -> bool:
        return task in self.tasks

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()})"

    def _tasks_of(self, job: str) -> dict[int, str]:
        for name, tasks in self._jobs:
            if name == job:
                return dict(tasks)
        raise ClusterSpecError(
            f"The cluster has no job {job!r}, only {', '.join(map(repr, self.jobs)) or 'none'}. "
            f"Use one of these, or add the job to the cluster: {self}."
        )


def of_run(cluster: Cluster, run: str) -> ClusterSpec:
    """The cluster of one run, where another run may have the same addresses.

    `run` is the scheduler's name for it; empty if it gives none.
    """
    spec = ClusterSpec(cluster)
    object.__setattr__(spec, "run", run)
    return spec


def cluster_name(spec: ClusterSpec, *jobs: str) -> str:
    """A name that all processes of a cluster know, and that no other cluster has.

    It is made only of the description, which all of them have, not of resolved names or of ports
    that were opened. Other clusters differ in an address, or in the scheduler's name for the run:
    the tasks of a Slurm step, for example, always have the same ports.

    Args:
        spec: The cluster.
        jobs: Those whose tasks all processes describe alike.

    Returns:
        A digest of the description, followed by its beginning, for human readers.

    Example:
        >>> from replicax.cluster_resolver import ClusterSpec, cluster_name
        >>> spec = ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "c:1"]})
        >>> cluster_name(spec, "chief", "worker")
        '8c0fabd9ac7e8b12df509be89f78df54 (worker b:1, c:1)'
    """
    members = {job: tasks for job, tasks in spec.as_dict().items() if job in jobs}
    digest = sha256(json.dumps([members, spec.run]).encode()).hexdigest()[:_DIGITS]
    parts = [
        f"{job} {', '.join(tasks if isinstance(tasks, list) else tasks.values())}"
        for job, tasks in members.items()
    ]
    text = "; ".join([*([f"run {spec.run}"] if spec.run else []), *parts])
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{digest} ({shown})"


def _list_or_dict(tasks: _Tasks) -> list[str] | dict[int, str]:
    dense = all(index == place for place, (index, _) in enumerate(tasks))
    return [address for _, address in tasks] if dense else dict(tasks)


def _read_jobs(cluster: object) -> tuple[tuple[str, _Tasks], ...]:
    if not isinstance(cluster, Mapping):
        raise ClusterSpecError.of("cluster", f"a mapping such as {_EXAMPLE}", cluster)
    jobs: dict[str, _Tasks] = {}
    for job, tasks in cast("Mapping[str, object]", cluster).items():
        if not _is_name(job):
            raise ClusterSpecError(
                "The name of a job must be a text such as 'worker', 'chief', 'ps' or 'evaluator', "
                f"got {job!r}. Write the cluster like {_EXAMPLE}."
            )
        jobs[job] = tuple(sorted(_read_tasks(job, tasks)))
    _check_addresses_differ(jobs)
    return tuple(sorted(jobs.items()))


def _read_tasks(job: str, tasks: object) -> Iterator[tuple[int, str]]:
    if isinstance(tasks, Mapping):
        numbered = _numbered(job, cast("Mapping[object, object]", tasks))
    elif isinstance(tasks, list | tuple):
        numbered = dict(enumerate(cast("Sequence[object]", tasks)))
    else:
        raise ClusterSpecError(
            f"The tasks of job {job!r} must be a list of addresses, or addresses by index, got "
            f"{tasks!r}. Write them like {_EXAMPLE}."
        )
    for index, address in numbered.items():
        yield index, _read_address(job, index, address)


def _numbered(job: str, tasks: Mapping[object, object]) -> dict[int, object]:
    numbered: dict[int, object] = {}
    for key, address in tasks.items():
        # JSON has no numbers as keys, so "1" means 1.
        index = int(key) if isinstance(key, str) and key.isdecimal() else key
        if not _is_index(index) or index in numbered:
            fault = "is there twice" if index in numbered else "is no integer from 0"
            raise ClusterSpecError(
                f"Index {key!r} {fault} in {job!r}: {dict(tasks)!r}. Write it like "
                '{"worker": {"1": "host1:2222"}}, or list all addresses.'
            )
        numbered[cast("int", index)] = address
    return numbered


def _read_address(job: str, index: int, address: object) -> str:
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None or not 0 < int(match[1]) < 2**16:
        raise ClusterSpecError(
            f"The address of {job} {index} must be host:port, with a port from 1 to 65535, got "
            f"{address!r}. Write it like {_EXAMPLE}; an IPv6 address goes into brackets, "
            "'[::1]:2222'."
        )
    return match[0]


def _check_addresses_differ(jobs: Mapping[str, _Tasks]) -> None:
    holder: dict[str, str] = {}
    for job, tasks in jobs.items():
        for index, address in tasks:
            if address in holder:
                raise ClusterSpecError(
                    f"{holder[address]} and {job} {index} have the same address {address!r}. Give "
                    f"each task a port of its own, or correct the host, as in {_EXAMPLE}."
                )
            holder[address] = f"{job} {index}"


def _is_name(job: object) -> bool:
    return isinstance(job, str) and bool(job.strip())


def _is_index(index: object) -> bool:
    return isinstance(index, int) and not isinstance(index, bool) and index >= 0


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
            f"Job {strange[0]!r} is none of {', '.join(ROLES)}. Rename it in {spec} or in {task}."
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

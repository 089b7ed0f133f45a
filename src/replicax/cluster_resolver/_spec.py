"""The tasks of a cluster and their addresses: `ClusterSpec` and `Task`, as data.

Resolvers find them; `_roles.py` says what a task does in the cluster; `_tf_config.py` writes them
as `TF_CONFIG`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeAlias, cast, final

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

    It is made of the description only, which all of them have: not of what a name leads to, or of
    where somebody listens. Other clusters differ in an address, or in the scheduler's name for the
    run: the tasks of a Slurm step, for one, always have the same ports.

    Args:
        spec: The cluster.
        jobs: Those whose tasks all processes describe alike.

    Returns:
        A digest of it all, and behind that the beginning of it, for people.

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
    jobs: dict[str, _Tasks] = {}
    for job, tasks in _entries(cluster):
        if not _is_name(job):
            raise ClusterSpecError(
                "The name of a job must be a text such as 'worker', 'chief', 'ps' or 'evaluator', "
                f"got {job!r}. Write the cluster like {_EXAMPLE}."
            )
        jobs[job] = tuple(sorted(_read_tasks(job, tasks)))
    _check_addresses_differ(jobs)
    return tuple(sorted(jobs.items()))


def _entries(cluster: object) -> Iterator[tuple[str, object]]:
    if not isinstance(cluster, Mapping):
        raise ClusterSpecError.of("cluster", f"a mapping such as {_EXAMPLE}", cluster)
    yield from cast("Mapping[str, object]", cluster).items()


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

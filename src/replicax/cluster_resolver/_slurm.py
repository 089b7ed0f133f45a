"""The cluster of a Slurm step: hosts, tasks and GPUs from the variables that `srun` sets.

The arithmetic of hosts and ranks is in `_placement.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from replicax._core.env import CUDA_VISIBLE_DEVICES, set_visible_gpus
from replicax._core.errors import ClusterSpecError
from replicax.cluster_resolver._base import ClusterResolver
from replicax.cluster_resolver._placement import (
    Place,
    check_place,
    expand_hostlist,
    expand_tasks_per_node,
    place_ranks,
)
from replicax.cluster_resolver._spec import ClusterSpec, of_run
from replicax.cluster_resolver._variables import number_of, text_of

PROCID = "SLURM_PROCID"
STEP_NUM_TASKS = "SLURM_STEP_NUM_TASKS"
STEP_NODELIST = "SLURM_STEP_NODELIST"

_RUN = ("SLURM_JOB_ID", "SLURM_STEP_ID")
_GPUS_ON_NODE = "SLURM_GPUS_ON_NODE"
_STEP_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"
_SRUN = "`srun` for each task of a step; `sbatch` and `salloc` alone do not start one"
_FIX = (
    "Start the step with `srun --distribution=block` or `srun --distribution=cyclic`, and pass "
    "tasks_per_node, if at all, in the order of SLURM_STEP_NODELIST."
)


@final
class SlurmClusterResolver(ClusterResolver):
    """The cluster of a Slurm step, as `srun` started it.

    **Differs from TF:** nodes keep Slurm's order, in which it counts its tasks; TensorFlow sorts
    them as texts, n10 before n9. `--distribution=cyclic` is followed. Tasks without GPUs are
    possible. GPUs are chosen among those that Slurm lets the step see, and if it has dealt them
    out to the tasks already, it stays at that.

    Args:
        jobs: How many tasks each job has, dealt out in the order of the jobs' names; by default
            all are workers.
        port_base: The port of the first task on a node; the next ones follow.
        gpus_per_node: GPUs of a node; by default as many as Slurm gave to the step.
        gpus_per_task: GPUs of a task; by default those of the node in equal parts.
        tasks_per_node: Tasks of each node, as a number or by host; by default what Slurm says.
        auto_set_gpu: Whether `cluster_spec()` sets `CUDA_VISIBLE_DEVICES` to this task's GPUs,
            if there are any. It never does if `environ` is given.
        rpc_layer: The protocol of `master()`.
        environ: The variables to read; by default those of the process.

    Raises:
        ClusterSpecError: At any question, if this is no step of Slurm, or the numbers disagree.

    Example:
        >>> from replicax.cluster_resolver import SlurmClusterResolver
        >>> environ = {
        ...     "SLURM_PROCID": "2",
        ...     "SLURM_STEP_NUM_TASKS": "3",
        ...     "SLURM_STEP_NODELIST": "n[1-2]",
        ...     "SLURM_STEP_TASKS_PER_NODE": "2,1",
        ... }
        >>> resolver = SlurmClusterResolver(environ=environ)
        >>> resolver.cluster_spec()
        ClusterSpec({'worker': ['n1:8888', 'n1:8889', 'n2:8888']})
        >>> resolver.get_task_info()
        ('worker', 2)
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._jobs = jobs
        self._port_base = port_base
        self._gpus_per_node = gpus_per_node
        self._gpus_per_task = gpus_per_task
        self._tasks_per_node = tasks_per_node
        self._auto_set_gpu = auto_set_gpu
        self._rpc_layer = rpc_layer
        self._environ = environ

    def cluster_spec(self) -> ClusterSpec:
        """The addresses of the step's tasks; see `auto_set_gpu` for what else it does."""
        places = self._places()
        cluster: dict[str, list[str]] = {}
        for (job, _), (host, local_rank) in zip(self._tasks(len(places)), places, strict=True):
            cluster.setdefault(job, []).append(f"{host}:{self._port_base + local_rank}")
        if self._auto_set_gpu and self._environ is None and (gpus := self.visible_gpus()):
            set_visible_gpus(gpus)
        environ = self._variables()
        return of_run(cluster, ".".join(environ[name] for name in _RUN if name in environ))

    def get_task_info(self) -> tuple[str | None, int | None]:
        """The job of this process and its number in it."""
        return self.task_type, self.task_id

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: object = None,
    ) -> Mapping[str, int]:
        """The GPUs of a task; empty if the step has none."""
        gpus = len(self.visible_gpus())
        return {"GPU": gpus} if gpus else {}

    def visible_gpus(self) -> list[str]:
        """The GPUs of this task, as `CUDA_VISIBLE_DEVICES` names them; empty if it has none.

        Raises:
            ClusterSpecError: If the tasks of a node ask for more GPUs than it has.
        """
        on_node, environ = self._gpus_on_node(), self._variables()
        visible = [str(gpu) for gpu in range(on_node)]
        if CUDA_VISIBLE_DEVICES in environ:
            visible = [gpu for gpu in environ[CUDA_VISIBLE_DEVICES].split(",") if gpu]
        if len(visible) < on_node:  # Slurm has dealt them out: --gpus-per-task, --gpu-bind
            return visible
        of_a_task = self._gpus_of_a_task(on_node)
        first = of_a_task * self._places()[self._rank()].local_rank
        return visible[first : first + of_a_task]

    def _found_task(self) -> tuple[str | None, int | None]:
        return self._tasks(len(self._places()))[self._rank()]

    def _rank(self) -> int:
        return number_of(self._variables(), PROCID, set_by=_SRUN)

    def _places(self) -> list[Place]:
        """The place of each task, checked against what Slurm says about this one."""
        environ = self._variables()
        cyclic = environ.get("SLURM_DISTRIBUTION", "").startswith("cyclic")
        places = place_ranks(self._nodes(), cyclic=cyclic)
        local_rank = None
        if "SLURM_LOCALID" in environ:
            local_rank = number_of(environ, "SLURM_LOCALID", set_by=_SRUN)
        host = environ.get("SLURMD_NODENAME")
        check_place(places, self._rank(), host=host, local_rank=local_rank, fix=_FIX)
        return places

    def _nodes(self) -> list[tuple[str, int]]:
        """Each host with its number of tasks."""
        if isinstance(self._tasks_per_node, Mapping):
            return list(self._tasks_per_node.items())
        environ = self._variables()
        hosts = expand_hostlist(text_of(environ, STEP_NODELIST, set_by=_SRUN))
        if self._tasks_per_node is not None:
            return [(host, self._tasks_per_node) for host in hosts]
        notation = text_of(environ, _STEP_TASKS_PER_NODE, set_by=_SRUN)
        counts = expand_tasks_per_node(notation)
        if len(counts) != len(hosts):
            raise ClusterSpecError(
                f"{STEP_NODELIST} has {len(hosts)} hosts {hosts}, but {_STEP_TASKS_PER_NODE} has "
                f"{len(counts)} counts {notation!r}. Pass tasks_per_node={{host: tasks, …}}."
            )
        return list(zip(hosts, counts, strict=True))

    def _tasks(self, assigned: int) -> list[tuple[str, int]]:
        """The job and number of each rank; all processes order the jobs alike."""
        jobs = self._jobs
        if jobs is None:
            jobs = {"worker": number_of(self._variables(), STEP_NUM_TASKS, set_by=_SRUN)}
        requested = sum(jobs.values())
        if requested != assigned:
            raise ClusterSpecError(
                f"`jobs` has {requested} tasks, {dict(jobs)}, but Slurm assigned {assigned}. Start "
                f"the step with `srun --ntasks={requested}`, or change `jobs`."
            )
        return [(job, index) for job in sorted(jobs) for index in range(jobs[job])]

    def _gpus_on_node(self) -> int:
        environ = self._variables()
        if self._gpus_per_node is not None or _GPUS_ON_NODE not in environ:
            return self._gpus_per_node or 0
        return number_of(environ, _GPUS_ON_NODE, set_by=_SRUN)

    def _gpus_of_a_task(self, on_node: int) -> int:
        tasks = max(tasks for _, tasks in self._nodes())
        wanted = self._gpus_per_task
        if wanted is None:
            wanted = on_node // tasks or min(on_node, 1)
        if wanted * tasks > on_node:
            raise ClusterSpecError(
                f"{tasks} tasks of {wanted} GPUs do not fit on a node with {on_node} GPUs. Start "
                "fewer tasks per node, ask for more GPUs, or pass gpus_per_node and gpus_per_task."
            )
        return wanted

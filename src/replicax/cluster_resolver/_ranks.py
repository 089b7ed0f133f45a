"""The clusters of Slurm and of MPI launchers: ranks that are laid over hosts."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, final

from replicax._core.env import CUDA_VISIBLE_DEVICES, set_variables
from replicax._core.errors import ClusterSpecError
from replicax.cluster_resolver._base import ClusterResolver, number_of, text_of
from replicax.cluster_resolver._spec import ClusterSpec, of_run

_NAME = re.compile(r"(?:[^\[\],\s]|\[[0-9,-]+\])+")  # of one host or, with brackets, of several
_PART = re.compile(r"\[([0-9,-]+)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class Place(NamedTuple):
    """Where one rank runs: its host, and its number among the ranks of that host."""

    host: str
    local_rank: int


def expand_hostlist(hostlist: str) -> list[str]:
    """The hosts that Slurm's notation names, in its order.

    **Differs from TF:** brackets may stand anywhere and more than once.

    Example:
        >>> expand_hostlist("login,n[08-10,12],r[0-1]c[1-2]")
        ['login', 'n08', 'n09', 'n10', 'n12', 'r0c1', 'r0c2', 'r1c1', 'r1c2']
    """
    names = _NAME.findall(hostlist)
    if not names or ",".join(names) != hostlist:
        raise _malformed_hostlist(hostlist)
    hosts: list[str] = []
    for name in names:
        parts = [
            _numbers(ranges, hostlist) if ranges else [text] for ranges, text in _PART.findall(name)
        ]
        hosts += ["".join(chosen) for chosen in itertools.product(*parts)]
    return hosts


def _numbers(ranges: str, hostlist: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _malformed_hostlist(hostlist)
        first, last = match[1], match[2] or match[1]
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _malformed_hostlist(hostlist: str) -> ClusterSpecError:
    return ClusterSpecError(
        f"{hostlist!r} is no list of hosts in Slurm's notation, such as n[01-03,7],login. "
        "`scontrol show hostnames` explains Slurm's own."
    )


def expand_tasks_per_node(tasks_per_node: str) -> list[int]:
    """How many tasks each node has, from Slurm's notation.

    Example:
        >>> expand_tasks_per_node("3(x2),2,1")
        [3, 3, 2, 1]
    """
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        match = _TASKS.fullmatch(part)
        if match is None:
            raise ClusterSpecError(
                f"{tasks_per_node!r} is no list of tasks per node in Slurm's notation, such as "
                "2(x3),1. Correct it, or pass tasks_per_node to the resolver."
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def place_ranks(nodes: Iterable[tuple[str, int]], *, cyclic: bool = False) -> list[Place]:
    """Lay ranks over nodes: a node is filled before the next begins, or they take turns (`cyclic`).

    Example:
        >>> [f"{host} {local}" for host, local in place_ranks([("a", 2), ("b", 1)])]
        ['a 0', 'a 1', 'b 0']
        >>> [f"{host} {local}" for host, local in place_ranks([("a", 2), ("b", 1)], cyclic=True)]
        ['a 0', 'b 0', 'a 1']
    """
    places = [Place(host, local) for host, count in nodes for local in range(count)]
    return sorted(places, key=lambda place: place.local_rank) if cyclic else places


def check_place(
    places: Sequence[Place], rank: int, *, host: str | None, local_rank: int | None, fix: str
) -> None:
    """Refuse places that differ from the launcher's, as far as this rank can tell.

    A `host` or `local_rank` that the launcher does not tell is None; `fix` says how to make the
    places agree.
    """
    if rank >= len(places):
        raise ClusterSpecError(f"Rank {rank} has no place: hosts hold {len(places)} ranks. {fix}")
    expected = places[rank]
    found = Place(
        expected.host if host is None else host,
        expected.local_rank if local_rank is None else local_rank,
    )
    if found != expected:
        raise ClusterSpecError(
            f"Rank {rank} is number {found.local_rank} on {found.host}, but the addresses assume "
            f"number {expected.local_rank} on {expected.host}. {fix}"
        )


PROCID = "SLURM_PROCID"
STEP_NUM_TASKS = "SLURM_STEP_NUM_TASKS"
STEP_NODELIST = "SLURM_STEP_NODELIST"

_RUN = ("SLURM_JOB_ID", "SLURM_STEP_ID")
_GPUS_ON_NODE = "SLURM_GPUS_ON_NODE"
_STEP_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"
_SRUN = "`srun` for each task of a step; `sbatch` and `salloc` alone do not start one"
_SLURM_FIX = (
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
        gpus_per_task: GPUs of a task; by default an equal part of the node's GPUs.
        tasks_per_node: Tasks of each node, as a number or by host; by default as Slurm says.
        auto_set_gpu: Whether `cluster_spec()` sets `CUDA_VISIBLE_DEVICES` to this task's GPUs,
            if there are any. It never does if `environ` is given.
        rpc_layer: The protocol of `master()`.
        environ: The variables to read; by default `os.environ`.

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
            set_variables({CUDA_VISIBLE_DEVICES: ",".join(gpus)})
        environ = self._variables()
        return of_run(cluster, ".".join(environ[name] for name in _RUN if name in environ))

    def get_task_info(self) -> tuple[str | None, int | None]:
        """The job of this process and its number in it."""
        return self.task_type, self.task_id

    def _accelerators(self) -> Mapping[str, int]:
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
        check_place(places, self._rank(), host=host, local_rank=local_rank, fix=_SLURM_FIX)
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


# Rank, number of ranks, and both on this host.
_LAUNCHERS = (
    # Open MPI
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # MVAPICH
    (
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    # MPICH and Intel MPI: the launcher Hydra
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_MPIRUN = "`mpirun` or `mpiexec`, for each rank that it starts"
_MPI_FIX = "Pass hosts, one entry for each rank, in the order of the ranks."


class MPIRank(NamedTuple):
    """The rank of this process, and its local rank if the launcher gives one."""

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None


def mpi_rank(environ: Mapping[str, str]) -> MPIRank | None:
    """This process' rank, as its MPI launcher says; None if none started it."""
    for rank, size, local_rank, local_size in _LAUNCHERS:
        if rank in environ and size in environ:
            return MPIRank(
                number_of(environ, rank, set_by=_MPIRUN),
                number_of(environ, size, set_by=_MPIRUN),
                number_of(environ, local_rank, set_by=_MPIRUN) if local_rank in environ else None,
                number_of(environ, local_size, set_by=_MPIRUN) if local_size in environ else None,
            )
    return None


@final
class MPIClusterResolver(ClusterResolver):
    """The ranks that `mpirun` started, as workers. TensorFlow has no counterpart.

    For Open MPI, MPICH, Intel MPI and MVAPICH. Their launchers tell a process its rank, but not
    the other ranks' hosts. These come from `hosts`; or there is one host; or the launcher runs in
    an allocation of Slurm.

    Args:
        hosts: The host of each rank; or, if all hosts have the same number of ranks and each is
            filled before the next begins, each host once.
        port_base: The port of the first rank on a host; the next ones follow.
        rpc_layer: The protocol of `master()`.
        environ: The variables to read; by default `os.environ`.

    Raises:
        ClusterSpecError: At any question, if no launcher started the process, or its hosts are
            not known.

    Example:
        >>> from replicax.cluster_resolver import MPIClusterResolver
        >>> environ = {"PMI_RANK": "1", "PMI_SIZE": "2"}
        >>> resolver = MPIClusterResolver(["host0", "host1"], environ=environ)
        >>> resolver.cluster_spec(), resolver.task_id
        (ClusterSpec({'worker': ['host0:8888', 'host1:8888']}), 1)
    """

    def __init__(
        self,
        hosts: Sequence[str] | None = None,
        port_base: int = 8888,
        rpc_layer: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._hosts = hosts
        self._port_base = port_base
        self._rpc_layer = rpc_layer
        self._environ = environ

    def cluster_spec(self) -> ClusterSpec:
        """The addresses of all ranks."""
        this = self._this()
        places = self._places(this)[: this.size]
        check_place(places, this.rank, host=None, local_rank=this.local_rank, fix=_MPI_FIX)
        return ClusterSpec({"worker": [f"{host}:{self._port_base + i}" for host, i in places]})

    def _found_task(self) -> tuple[str | None, int | None]:
        return "worker", self._this().rank

    def _this(self) -> MPIRank:
        this = mpi_rank(self._variables())
        if this is None:
            names = ", ".join(rank for rank, *_ in _LAUNCHERS)
            raise ClusterSpecError(
                f"No MPI launcher started this process: none of {names} is set. Start it with "
                "`mpirun -n 2 python train.py`, or use another resolver."
            )
        return this

    def _places(self, this: MPIRank) -> list[Place]:
        """Where the ranks run."""
        environ = self._variables()
        if self._hosts is not None:
            return _places_on(self._hosts, this)
        if this.local_size == this.size:
            return place_ranks([("127.0.0.1", this.size)])
        if "SLURM_JOB_NODELIST" in environ and "SLURM_TASKS_PER_NODE" in environ:
            hosts = expand_hostlist(environ["SLURM_JOB_NODELIST"])
            slots = expand_tasks_per_node(environ["SLURM_TASKS_PER_NODE"])
            return place_ranks(zip(hosts, slots, strict=False))
        raise ClusterSpecError(
            f"Rank {this.rank} of {this.size} does not know the hosts of the other ranks; "
            f'{this.local_size} run on this one. Pass MPIClusterResolver(hosts=["host0", '
            '"host1"]), or set TF_CONFIG.'
        )


def _places_on(hosts: Sequence[str], this: MPIRank) -> list[Place]:
    if len(hosts) == this.size:
        seen: Counter[str] = Counter()
        places: list[Place] = []
        for host in hosts:
            places.append(Place(host, seen[host]))
            seen[host] += 1
        return places
    if not hosts or this.size % len(hosts) or len(set(hosts)) < len(hosts):
        raise ClusterSpecError(
            f"Cannot divide {this.size} ranks over the {len(hosts)} hosts {list(hosts)}. {_MPI_FIX}"
        )
    return place_ranks((host, this.size // len(hosts)) for host in hosts)

"""The cluster of an MPI launcher: ranks from its variables, hosts from the program or Slurm.

MPI's library is not needed: the launcher sets the variables before the process starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

from replicax._core.errors import ClusterSpecError
from replicax.cluster_resolver._base import ClusterResolver
from replicax.cluster_resolver._placement import (
    Place,
    check_place,
    expand_hostlist,
    expand_tasks_per_node,
    place_ranks,
)
from replicax.cluster_resolver._spec import ClusterSpec
from replicax.cluster_resolver._variables import number_of

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
_FIX = "Pass hosts, one entry for each rank, in the order of the ranks."


class MPIRank(NamedTuple):
    """This process among all ranks, and among those of its host if the launcher says so."""

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
        environ: The variables to read; by default those of the process.

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
        check_place(places, this.rank, host=None, local_rank=this.local_rank, fix=_FIX)
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
            f"Cannot divide {this.size} ranks over the {len(hosts)} hosts {list(hosts)}. {_FIX}"
        )
    return place_ranks((host, this.size // len(hosts)) for host in hosts)

"""The variables of MPI launchers, as Open MPI 5.0, MPICH 5.0 and Intel MPI 2021 set them."""

from __future__ import annotations

import pytest

from replicax import errors
from replicax.cluster_resolver import MPIClusterResolver
from replicax.cluster_resolver._ranks import MPIRank, mpi_rank


def open_mpi(rank, size, local_rank, local_size):
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "PMIX_RANK": str(rank),
    }


def hydra(rank, size, local_rank, local_size):
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(local_rank),
        "MPI_LOCALNRANKS": str(local_size),
    }


def mvapich(rank, size, local_rank, local_size):
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = (rank, size, local_rank, local_size)
    return {f"MV2_COMM_WORLD_{n}": str(v) for n, v in zip(names, values, strict=True)}


@pytest.mark.parametrize("launcher", [open_mpi, hydra, mvapich])
def test_the_rank_is_read(launcher):
    assert mpi_rank(launcher(3, 4, 1, 2)) == MPIRank(3, 4, 1, 2)


def test_a_launcher_may_not_tell_local_ranks():
    assert mpi_rank({"PMI_RANK": "0", "PMI_SIZE": "2"}) == MPIRank(0, 2, None, None)


def test_without_a_launcher_there_is_no_rank():
    assert mpi_rank({"PMIX_RANK": "0"}) is None
    with pytest.raises(errors.ClusterSpecError, match="mpirun"):
        MPIClusterResolver(environ={}).cluster_spec()


@pytest.mark.parametrize("launcher", [open_mpi, hydra, mvapich])
def test_all_ranks_on_one_host(launcher):
    resolver = MPIClusterResolver(environ=launcher(1, 2, 1, 2))
    assert resolver.cluster_spec().as_dict() == {"worker": ["127.0.0.1:8888", "127.0.0.1:8889"]}
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master() == "127.0.0.1:8889"


def test_each_host_once():
    resolver = MPIClusterResolver(["a", "b"], port_base=7000, environ=open_mpi(2, 4, 0, 2))
    assert resolver.cluster_spec().as_dict() == {"worker": ["a:7000", "a:7001", "b:7000", "b:7001"]}


def test_a_host_for_each_rank():
    resolver = MPIClusterResolver(["a", "b", "a"], environ=hydra(2, 3, 1, 2))
    assert resolver.cluster_spec().as_dict() == {"worker": ["a:8888", "b:8888", "a:8889"]}


@pytest.mark.parametrize("hosts", [[], ["a", "b"], ["a", "a"], ["a", "b", "c", "d"]])
def test_hosts_that_do_not_fit_the_ranks(hosts):
    size = 4 if hosts == ["a", "a"] else 3
    with pytest.raises(errors.ClusterSpecError, match="Cannot divide"):
        MPIClusterResolver(hosts, environ=open_mpi(0, size, 0, 1)).cluster_spec()


def test_ranks_that_take_turns_need_a_host_for_each():
    # mpirun --map-by node: rank 1 is the first on the second host.
    environ = open_mpi(1, 4, 0, 2)
    with pytest.raises(errors.ClusterSpecError, match="Pass hosts, one entry for each rank"):
        MPIClusterResolver(["a", "b"], environ=environ).cluster_spec()
    spec = MPIClusterResolver(["a", "b", "a", "b"], environ=environ).cluster_spec()
    assert spec.task_address("worker", 1) == "b:8888"


def test_hosts_of_an_allocation_of_slurm():
    allocation = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    resolver = MPIClusterResolver(environ={**open_mpi(2, 3, 0, 1), **allocation})
    assert resolver.cluster_spec().as_dict() == {"worker": ["n1:8888", "n1:8889", "n2:8888"]}


def test_an_allocation_that_is_too_small():
    allocation = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
    resolver = MPIClusterResolver(environ={**open_mpi(2, 3, 1, 2), **allocation})
    with pytest.raises(errors.ClusterSpecError, match="Rank 2 has no place"):
        resolver.cluster_spec()


@pytest.mark.parametrize(
    "environ", [open_mpi(0, 4, 0, 2), {"PMI_RANK": "0", "PMI_SIZE": "2"}], ids=["two", "unknown"]
)
def test_hosts_that_are_not_known(environ):
    with pytest.raises(errors.ClusterSpecError, match="Rank 0.*hosts=") as e:
        MPIClusterResolver(environ=environ).cluster_spec()
    assert "hosts=[" in str(e.value)

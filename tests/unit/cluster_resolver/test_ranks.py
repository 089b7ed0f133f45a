"""Slurm steps, whose first pairs are those of TensorFlow's own tests, and MPI's variables."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax import errors
from replicax.cluster_resolver import (
    ClusterSpec,
    MPIClusterResolver,
    SlurmClusterResolver,
    UnionResolver,
)
from replicax.cluster_resolver._ranks import (
    MPIRank,
    Place,
    check_place,
    expand_hostlist,
    expand_tasks_per_node,
    mpi_rank,
    place_ranks,
)


@pytest.mark.parametrize(
    ("notation", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-2],m5,o[3-4,6,7-9]", ["n1", "n2", "m5", "o3", "o4", "o6", "o7", "o8", "o9"]),
        ("t02n13,t02n41,t02n43", ["t02n13", "t02n41", "t02n43"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[9-10]", ["n9", "n10"]),
        ("n[1,1]", ["n1", "n1"]),
        ("a[1-2]-ib", ["a1-ib", "a2-ib"]),
        ("a-b.c,d", ["a-b.c", "d"]),
        ("r[0-1]n[1-2]", ["r0n1", "r0n2", "r1n1", "r1n2"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_hostlists(notation, hosts):
    assert expand_hostlist(notation) == hosts


@pytest.mark.parametrize("notation", ["", "n[1-2", "n1,,n2", "n[a]", "n[]", "n[1-]", "n1,", "n]1["])
def test_what_is_no_hostlist(notation):
    with pytest.raises(errors.ClusterSpecError, match="no list of hosts"):
        expand_hostlist(notation)


@pytest.mark.parametrize(
    ("notation", "counts"), [("3(x2),2,1", [3, 3, 2, 1]), ("4", [4]), ("1(x1),2", [1, 2])]
)
def test_tasks_per_node(notation, counts):
    assert expand_tasks_per_node(notation) == counts


@pytest.mark.parametrize("notation", ["", "2(x)", "2x3", "2,,1", "two"])
def test_what_is_no_tasks_per_node(notation):
    with pytest.raises(errors.ClusterSpecError, match="no list of tasks per node"):
        expand_tasks_per_node(notation)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.booleans())
def test_every_rank_has_a_place_of_its_own(counts, cyclic):
    places = place_ranks([(f"n{i}", count) for i, count in enumerate(counts)], cyclic=cyclic)
    assert len(set(places)) == len(places) == sum(counts)
    for node, count in enumerate(counts):
        here = [place.local_rank for place in places if place.host == f"n{node}"]
        assert here == list(range(count))  # a node numbers its ranks in the order of the ranks


def test_nodes_that_take_turns():
    places = place_ranks([("a", 1), ("b", 3), ("c", 2)], cyclic=True)
    assert "".join(place.host for place in places) == "abcbcb"


PLACES = [Place("a", 0), Place("a", 1), Place("b", 0)]


@pytest.mark.parametrize(
    ("rank", "host", "local_rank", "said"),
    [
        (2, "a", None, r"Rank 2.*number 0 on b\..*Mend it\.$"),
        (2, None, 1, r"Rank 2.*number 0 on b\..*Mend it\.$"),
        (2, "a", 1, r"Rank 2.*number 0 on b\..*Mend it\.$"),
        (3, None, None, "Rank 3 .*Mend it"),
    ],
)
def test_a_rank_elsewhere(rank, host, local_rank, said):
    with pytest.raises(errors.ClusterSpecError, match=said):
        check_place(PLACES, rank, host=host, local_rank=local_rank, fix="Mend it.")


STEP = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "t02n13,t02n41,t02n43",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}
JOBS = {"ps": 1, "worker": 4}


def step(*nodes, rank=0, **more):
    """The environment of a step with (host, tasks) as nodes."""
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(sum(tasks for _, tasks in nodes)),
        "SLURM_STEP_NODELIST": ",".join(host for host, _ in nodes),
        "SLURM_STEP_TASKS_PER_NODE": ",".join(str(tasks) for _, tasks in nodes),
        **more,
    }


def test_the_step_of_tensorflows_test():
    resolver = SlurmClusterResolver(
        JOBS, port_base=8888, gpus_per_node=2, gpus_per_task=1, environ=STEP
    )
    expected = {
        "ps": ["t02n13:8888"],
        "worker": ["t02n13:8889", "t02n41:8888", "t02n41:8889", "t02n43:8888"],
    }
    assert resolver.cluster_spec() == ClusterSpec(expected)
    assert resolver.get_task_info() == ("worker", 0)
    assert resolver.visible_gpus() == ["1"]
    assert resolver.master() == "grpc://t02n13:8889"
    assert resolver.master("worker", 3) == "grpc://t02n43:8888"
    assert resolver.master("ps", 0, rpc_layer="test") == "test://t02n13:8888"
    assert resolver.num_accelerators() == {"GPU": 1}


def test_each_step_has_a_name_of_its_own():
    def name(**ids):
        resolver = SlurmClusterResolver(environ=STEP | ids)
        assert UnionResolver(resolver).cluster_name() == resolver.cluster_name()
        return resolver.cluster_name()

    ids = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}
    assert "run 12.0; worker t02n13:8888" in name(**ids)
    assert name(**ids, SLURM_PROCID="4") == name(**ids)
    assert len({name(), name(**ids), name(**ids | {"SLURM_STEP_ID": "1"})}) == 3


@pytest.mark.parametrize("tasks_per_node", [2, {"a": 2, "b": 2}])
def test_tasks_per_node_can_be_given(tasks_per_node):
    environ = step(("a", 1), ("b", 3), rank=2)
    resolver = SlurmClusterResolver(tasks_per_node=tasks_per_node, environ=environ)
    assert resolver.cluster_spec().as_dict() == {"worker": ["a:8888", "a:8889", "b:8888", "b:8889"]}


def test_nodes_keep_slurms_order():
    # Sorted as texts, n10 would come before n9, and rank 0 would look for itself on n10.
    environ = {**step(("n9", 1), ("n10", 1)), "SLURM_STEP_NODELIST": "n[9-10]"}
    spec = SlurmClusterResolver(environ=environ).cluster_spec()
    assert spec.as_dict() == {"worker": ["n9:8888", "n10:8888"]}


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5), st.sampled_from(["block", "cyclic:block"])
)
def test_all_tasks_agree_and_find_themselves(counts, distribution):
    nodes = [(f"n{i}", count) for i, count in enumerate(counts)]
    places = place_ranks(nodes, cyclic=distribution != "block")
    specs = set()
    for rank, (host, local_rank) in enumerate(places):
        slurm = {
            "SLURM_DISTRIBUTION": distribution,
            "SLURMD_NODENAME": host,
            "SLURM_LOCALID": str(local_rank),
        }
        resolver = SlurmClusterResolver(environ=step(*nodes, rank=rank, **slurm))
        specs.add(resolver.cluster_spec())
        assert resolver.master() == f"grpc://{host}:{8888 + local_rank}"
    assert len(specs) == 1


@pytest.mark.parametrize("here", [{"SLURM_LOCALID": "0"}, {"SLURMD_NODENAME": "b"}])
def test_a_placement_that_slurm_contradicts(here):
    resolver = SlurmClusterResolver(environ=step(("a", 2), ("b", 2), rank=1, **here))
    with pytest.raises(errors.ClusterSpecError, match=r"srun --distribution=block"):
        resolver.cluster_spec()


def test_more_tasks_than_were_assigned():
    resolver = SlurmClusterResolver({"worker": 3}, environ=step(("a", 2)))
    with pytest.raises(errors.ClusterSpecError, match="3 tasks.* assigned 2.*srun --ntasks=3"):
        resolver.cluster_spec()


def test_hosts_and_counts_that_do_not_fit():
    resolver = SlurmClusterResolver(environ={**step(("a", 2)), "SLURM_STEP_NODELIST": "a,b"})
    with pytest.raises(errors.ClusterSpecError, match="2 hosts.* 1 counts"):
        resolver.cluster_spec()


@pytest.mark.parametrize("name", sorted(STEP))
def test_outside_of_a_step(name):
    environ = {key: value for key, value in STEP.items() if key != name}
    with pytest.raises(errors.ClusterSpecError, match=f"{name} is not set. It is set by `srun`"):
        SlurmClusterResolver(environ=environ).cluster_spec()


@pytest.mark.parametrize("value", ["-1", "one", "1.0"])
def test_a_number_that_is_none(value):
    with pytest.raises(errors.ClusterSpecError, match="`SLURM_PROCID`"):
        SlurmClusterResolver(environ=STEP | {"SLURM_PROCID": value}).cluster_spec()


def gpus(rank=1, nodes=(("a", 2), ("b", 2)), environ=(), **options):
    return SlurmClusterResolver(environ=step(*nodes, rank=rank, **dict(environ)), **options)


def test_without_gpus():
    assert gpus().visible_gpus() == []
    assert gpus().num_accelerators() == {}


def test_the_gpus_of_the_step_are_dealt_out():
    of_step = {"SLURM_GPUS_ON_NODE": "4"}
    assert gpus(0, environ=of_step).visible_gpus() == ["0", "1"]
    assert gpus(1, environ=of_step).visible_gpus() == ["2", "3"]
    assert gpus(2, environ=of_step).visible_gpus() == ["0", "1"]


def test_gpus_are_chosen_among_those_that_can_be_seen():
    of_step = {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert gpus(1, environ=of_step).visible_gpus() == ["3"]


@pytest.mark.parametrize(("visible", "expected"), [("1", ["1"]), ("", [])])
def test_gpus_that_slurm_has_dealt_out_are_kept(visible, expected):
    of_step = {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": visible}
    assert gpus(1, environ=of_step).visible_gpus() == expected


@pytest.mark.parametrize(
    "options",
    [
        {"gpus_per_node": 2, "gpus_per_task": 2},
        {"gpus_per_node": 1},
        {"gpus_per_task": 1},
        {"environ": {"SLURM_GPUS_ON_NODE": "1"}},
    ],
)
def test_more_gpus_than_the_node_has(options):
    with pytest.raises(errors.ClusterSpecError, match="GPUs.*gpus_per_task"):
        gpus(**options).visible_gpus()


def set_variables(monkeypatch, **variables):
    for name, value in (step(("a", 2), rank=1, SLURM_GPUS_ON_NODE="4") | variables).items():
        monkeypatch.setenv(name, value)


def test_the_process_sees_its_gpus_only(monkeypatch):
    set_variables(monkeypatch, CUDA_VISIBLE_DEVICES="0,1,2,3")
    resolver = SlurmClusterResolver()
    for _ in range(2):  # asking again does not divide what is left
        resolver.cluster_spec()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_gpus_are_not_set_if_that_is_not_wanted(monkeypatch):
    set_variables(monkeypatch, CUDA_VISIBLE_DEVICES="0,1,2,3")
    SlurmClusterResolver(auto_set_gpu=False).cluster_spec()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_gpus_are_not_set_for_an_environment_that_was_given(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    gpus(environ={"SLURM_GPUS_ON_NODE": "4"}).cluster_spec()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


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


ALLOCATED = {"SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.mark.parametrize(
    ("hosts", "environ", "workers"),
    [
        (["a", "b"], open_mpi(2, 4, 0, 2), ["a:7000", "a:7001", "b:7000", "b:7001"]),
        (["a", "b", "a"], hydra(2, 3, 1, 2), ["a:7000", "b:7000", "a:7001"]),
        # mpirun --map-by node: rank 1 is the first on the second host.
        (["a", "b", "a", "b"], open_mpi(1, 4, 0, 2), ["a:7000", "b:7000", "a:7001", "b:7001"]),
        (
            None,
            open_mpi(2, 3, 0, 1) | ALLOCATED | {"SLURM_TASKS_PER_NODE": "2(x2)"},
            ["n1:7000", "n1:7001", "n2:7000"],
        ),
    ],
    ids=["each host once", "a host for each rank", "by node", "an allocation of Slurm"],
)
def test_the_hosts_of_ranks(hosts, environ, workers):
    resolver = MPIClusterResolver(hosts, port_base=7000, environ=environ)
    assert resolver.cluster_spec().as_dict() == {"worker": workers}


@pytest.mark.parametrize(
    ("hosts", "environ", "said"),
    [
        ([], open_mpi(0, 3, 0, 1), "Cannot divide"),
        (["a", "b"], open_mpi(0, 3, 0, 1), "Cannot divide"),
        (["a", "a"], open_mpi(0, 4, 0, 1), "Cannot divide"),
        (["a", "b", "c", "d"], open_mpi(0, 3, 0, 1), "Cannot divide"),
        (["a", "b"], open_mpi(1, 4, 0, 2), "Pass hosts, one entry for each rank"),
        (
            None,
            open_mpi(2, 3, 1, 2) | ALLOCATED | {"SLURM_TASKS_PER_NODE": "1(x2)"},
            "Rank 2 has no place",
        ),
        (None, open_mpi(0, 4, 0, 2), r"Rank 0.*hosts=\["),
        (None, {"PMI_RANK": "0", "PMI_SIZE": "2"}, r"Rank 0.*hosts=\["),
    ],
)
def test_hosts_that_do_not_fit_the_ranks(hosts, environ, said):
    with pytest.raises(errors.ClusterSpecError, match=said):
        MPIClusterResolver(hosts, environ=environ).cluster_spec()

"""Slurm steps; the first pairs are those of TensorFlow's own tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax import errors
from replicax.cluster_resolver import ClusterSpec, SlurmClusterResolver, UnionResolver
from replicax.cluster_resolver._ranks import place_ranks

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


def test_two_gpus_per_task():
    resolver = SlurmClusterResolver(JOBS, gpus_per_node=4, gpus_per_task=2, environ=STEP)
    assert resolver.visible_gpus() == ["2", "3"]
    assert resolver.num_accelerators() == {"GPU": 2}


def test_all_tasks_are_workers_by_default():
    resolver = SlurmClusterResolver(environ=STEP)
    assert resolver.cluster_spec().num_tasks("worker") == 5
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)


def test_each_step_has_a_name_of_its_own():
    def name(**ids):
        resolver = SlurmClusterResolver(environ=STEP | ids)
        assert UnionResolver(resolver).cluster_name() == resolver.cluster_name()
        return resolver.cluster_name()

    ids = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}
    assert "run 12.0; worker t02n13:8888" in name(**ids)
    assert name(**ids, SLURM_PROCID="4") == name(**ids)
    assert len({name(), name(**ids), name(**ids | {"SLURM_STEP_ID": "1"})}) == 3


def test_the_task_can_be_set():
    resolver = SlurmClusterResolver(environ=STEP)
    resolver.task_id = 3
    assert resolver.get_task_info() == ("worker", 3)


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
    with pytest.raises(errors.ClusterSpecError, match="srun --ntasks=3") as e:
        resolver.cluster_spec()
    assert "3 tasks, {'worker': 3}, but Slurm assigned 2" in str(e.value)


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


# GPUs


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

"""Clusters and tasks as data: what they answer, what they refuse, and who is chief."""

import copy
import pickle
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax import errors
from replicax.cluster_resolver import (
    ClusterSpec,
    Task,
    cluster_name,
    id_in_cluster,
    is_chief,
    jax_process,
    worker_count,
)
from replicax.cluster_resolver._spec import of_run

CLUSTER = {"worker": ["w0:1", "w1:1", "w2:1"], "ps": ["p0:1"], "chief": ["c0:1"]}


def test_jobs_and_tasks_are_listed():
    spec = ClusterSpec(CLUSTER)
    assert spec.jobs == ["chief", "ps", "worker"]
    assert spec.tasks == [Task("chief", 0), Task("ps", 0)] + [Task("worker", i) for i in range(3)]
    assert spec.num_tasks("worker") == 3
    assert spec.task_indices("worker") == [0, 1, 2]
    assert spec.job_tasks("worker") == ["w0:1", "w1:1", "w2:1"]
    assert spec.task_address("worker", 2) == "w2:1"


def test_as_dict_is_what_it_was_made_of():
    assert ClusterSpec(CLUSTER).as_dict() == CLUSTER
    assert ClusterSpec(ClusterSpec(CLUSTER)).as_dict() == CLUSTER


@pytest.mark.parametrize("index", [1, "1"])
def test_a_job_may_have_some_tasks_only(index):
    spec = ClusterSpec({"worker": {index: "w1:1"}})
    assert spec.as_dict() == {"worker": {1: "w1:1"}}
    assert spec.num_tasks("worker") == 1
    assert spec.task_indices("worker") == [1]
    assert spec.job_tasks("worker") == [None, "w1:1"]


def test_a_dict_of_all_tasks_is_a_list():
    assert ClusterSpec({"worker": {1: "b:1", 0: "a:1"}}) == ClusterSpec({"worker": ["a:1", "b:1"]})


def test_a_job_may_be_empty():
    spec = ClusterSpec({"worker": []})
    assert spec.num_tasks("worker") == 0
    assert spec.job_tasks("worker") == []


def test_the_order_of_the_jobs_does_not_matter():
    turned = ClusterSpec(dict(reversed(CLUSTER.items())))
    assert turned == ClusterSpec(CLUSTER)
    assert hash(turned) == hash(ClusterSpec(CLUSTER))
    assert turned != ClusterSpec({"worker": ["w0:1"]})


def test_an_empty_cluster_is_false():
    assert not ClusterSpec({})
    assert ClusterSpec(CLUSTER)


def test_a_task_is_in_its_cluster():
    assert Task("ps", 0) in ClusterSpec(CLUSTER)
    assert Task("ps", 1) not in ClusterSpec(CLUSTER)


def test_a_cluster_cannot_be_changed():
    spec = ClusterSpec(CLUSTER)
    spec.as_dict()["worker"].append("w3:1")
    assert spec.num_tasks("worker") == 3
    with pytest.raises(FrozenInstanceError):
        spec._jobs = ()
    with pytest.raises(FrozenInstanceError):
        Task("worker", 0).index = 1


def test_a_cluster_travels_between_processes():
    spec = ClusterSpec(CLUSTER)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert copy.deepcopy(spec) == spec


def test_the_text_of_a_cluster_makes_it_again():
    spec = ClusterSpec({"worker": {2: "a:1"}})
    assert repr(spec) == "ClusterSpec({'worker': {2: 'a:1'}})"
    assert eval(repr(spec)) == spec


@pytest.mark.parametrize("address", ["host:1", "10.0.0.1:65535", "[::1]:22", "[fe80::1%eth0]:22"])
def test_addresses(address):
    assert ClusterSpec({"worker": [address]}).task_address("worker", 0) == address


@pytest.mark.parametrize(
    "address",
    ["host", "host:", ":22", "host:0", "host:65536", "host:-1", "host:http", "grpc://host:22"]
    + ["a b:22", "::1:22", "", 22, None, ["host:22"]],
)
def test_what_is_no_address(address):
    with pytest.raises(errors.ClusterSpecError) as e:
        ClusterSpec({"worker": ["ok:1", address]})
    said = f"worker 1 must be host:port, with a port from 1 to 65535, got {address!r}."
    assert said in str(e.value)
    assert '{"worker": ["host0:2222", "host1:2222"]}' in str(e.value)


@pytest.mark.parametrize(
    ("cluster", "first", "second"),
    [
        ({"worker": ["a:1", "b:1", "a:1"]}, "worker 0", "worker 2"),
        ({"worker": ["a:1"], "ps": ["a:1"]}, "worker 0", "ps 0"),
    ],
)
def test_two_tasks_at_one_address(cluster, first, second):
    said = f"{first} and {second} have the same address 'a:1'\\."
    with pytest.raises(errors.ClusterSpecError, match=said):
        ClusterSpec(cluster)


@pytest.mark.parametrize(
    ("cluster", "said"),
    [(cluster, "`cluster`") for cluster in (None, ["a:1"], "a:1", 3)]
    + [({job: ["a:1"]}, "name of a job") for job in ("", " ", 1, None)]
    + [({"worker": tasks}, "list of addresses") for tasks in ("a:1", None, 2, {"a:1"})]
    + [({"worker": {index: "a:1"}}, "no integer from 0") for index in ("one", -1, True)]
    + [({"worker": {1: "a:1", "1": "b:1"}}, "twice")],
)
def test_what_is_no_cluster(cluster, said):
    with pytest.raises(errors.ClusterSpecError, match=said):
        ClusterSpec(cluster)


def test_an_unknown_job_is_answered_with_the_jobs_there_are():
    with pytest.raises(errors.ClusterSpecError, match="'evaluator', only 'chief', 'ps', 'worker'"):
        ClusterSpec(CLUSTER).num_tasks("evaluator")


def test_an_unknown_index_is_answered_with_the_indices_there_are():
    with pytest.raises(errors.ClusterSpecError, match=r"'worker' has no task 3, only \[0, 1, 2\]"):
        ClusterSpec(CLUSTER).task_address("worker", 3)


@pytest.mark.parametrize(("job", "index"), [("", 0), (None, 0), ("worker", -1), ("worker", "0")])
def test_a_task_is_a_name_and_a_number(job, index):
    with pytest.raises(errors.ClusterSpecError, match="`job`|`index`"):
        Task(job, index)


def digest(cluster, *jobs, run=""):
    return cluster_name(of_run(cluster, run), *jobs).partition(" ")[0]


@pytest.mark.parametrize(
    "other",
    [
        {**CLUSTER, "chief": ["c0:2"]},
        {**CLUSTER, "worker": ["w0:1", "w1:1"]},
        {**CLUSTER, "worker": ["w1:1", "w0:1", "w2:1"]},
        {**CLUSTER, "worker": {0: "w0:1", 1: "w1:1", 3: "w2:1"}},
        {"worker": ["c0:1", "w0:1", "w1:1", "w2:1"]},
    ],
)
def test_other_members_give_a_cluster_another_name(other):
    assert digest(other, "chief", "worker") != digest(CLUSTER, "chief", "worker")


def test_who_is_no_member_has_no_part_in_the_name():
    assert digest({**CLUSTER, "ps": ["p:9"], "evaluator": ["e:1"]}, "chief", "worker") == digest(
        CLUSTER, "chief", "worker"
    )


def test_each_run_of_a_scheduler_gives_a_cluster_another_name():
    names = {digest(CLUSTER, "worker", run=run) for run in ("", "7.0", "7.1")}
    assert len(names) == 3
    copied = ClusterSpec(of_run(CLUSTER, "7.0"))
    assert cluster_name(copied, "worker").partition(" ")[0] in names
    assert "run 7.0" in cluster_name(copied, "worker")
    assert copied == ClusterSpec(CLUSTER) and hash(copied) == hash(ClusterSpec(CLUSTER))


def test_the_name_of_a_large_cluster_is_short():
    many = {"worker": [f"host{index}.cluster:2222" for index in range(1000)]}
    one_differs = {"worker": [*many["worker"][:-1], "other:2222"]}
    assert len(cluster_name(ClusterSpec(many), "worker")) < 250
    assert digest(many, "worker") != digest(one_differs, "worker")


WITH_CHIEF = ClusterSpec({"chief": ["c:1"], "worker": ["w0:1", "w1:1"], "ps": ["p0:1", "p1:1"]})
WITHOUT_CHIEF = ClusterSpec({"worker": ["w0:1", "w1:1"], "evaluator": ["e:1"]})
CHIEF, WORKER_0, WORKER_1 = Task("chief", 0), Task("worker", 0), Task("worker", 1)
PS, EVALUATOR = Task("ps", 0), Task("evaluator", 0)
PAIR = ["a:1", "b:1"]


@pytest.mark.parametrize(
    ("spec", "task", "chief"),
    [
        (WITH_CHIEF, CHIEF, True),
        (WITH_CHIEF, WORKER_0, False),
        (WITH_CHIEF, PS, False),
        (WITHOUT_CHIEF, WORKER_0, True),
        (WITHOUT_CHIEF, WORKER_1, False),
        (WITHOUT_CHIEF, EVALUATOR, True),
        (WITH_CHIEF, EVALUATOR, True),  # may be left out of the cluster, as in TensorFlow
    ],
)
def test_who_is_chief(spec, task, chief):
    assert is_chief(spec, task) is chief


@pytest.mark.parametrize(
    ("spec", "task", "count", "number"),
    [
        (WITH_CHIEF, CHIEF, 3, 0),
        (WITH_CHIEF, WORKER_0, 3, 1),
        (WITH_CHIEF, WORKER_1, 3, 2),
        (WITHOUT_CHIEF, WORKER_0, 2, 0),
        (WITHOUT_CHIEF, WORKER_1, 2, 1),
        (WITHOUT_CHIEF, EVALUATOR, 1, 0),
        (WITH_CHIEF, EVALUATOR, 1, 0),
    ],
)
def test_who_is_counted(spec, task, count, number):
    assert worker_count(spec, task) == count
    assert id_in_cluster(spec, task) == number


def test_an_empty_list_of_chiefs_is_no_chief():
    assert is_chief(ClusterSpec({"chief": [], "worker": ["w:1"]}), WORKER_0)


@pytest.mark.parametrize(
    ("question", "spec", "task", "said"),
    [
        (worker_count, WITH_CHIEF, PS, "ps 0 is a parameter server"),
        (id_in_cluster, WITH_CHIEF, PS, "ps 0 is a parameter server"),
        (is_chief, {"chief": PAIR, "worker": ["w:1"]}, WORKER_0, "be at most one 'chief'"),
        (is_chief, {"evaluator": PAIR, "worker": ["w:1"]}, WORKER_0, "be at most one 'evaluator'"),
        (is_chief, {"workers": ["a:1"]}, Task("workers", 0), "is none of chief"),
        (is_chief, {"worker": ["a:1"], "master": ["b:1"]}, WORKER_0, "is none of chief"),
        (is_chief, WITH_CHIEF, Task("coordinator", 0), "is none of chief"),
        (is_chief, WITHOUT_CHIEF, Task("worker", 2), "has no task"),
        (is_chief, WITHOUT_CHIEF, Task("evaluator", 1), "has no task"),
        (jax_process, WITH_CHIEF, PS, "neither the chief nor a worker"),
        (jax_process, WITH_CHIEF, EVALUATOR, "neither the chief nor a worker"),
        (jax_process, {"worker": {0: "a:1", 2: "c:1"}}, WORKER_0, "no address for worker 1"),
    ],
)
def test_questions_about_others_and_about_clusters_that_cannot_be(question, spec, task, said):
    with pytest.raises(errors.ClusterSpecError, match=said):
        question(ClusterSpec(spec), task)


@given(st.booleans(), st.integers(1, 6), st.integers(0, 3))
def test_processes_are_numbered_without_gaps_and_agree(chief, workers, servers):
    spec = ClusterSpec(
        {
            "chief": ["c:1"] * chief,
            "worker": [f"w{i}:1" for i in range(workers)],
            "ps": [f"p{i}:1" for i in range(servers)],
        }
    )
    training = [task for task in spec.tasks if task.job != "ps"]
    processes = [jax_process(spec, task) for task in training]
    assert sorted(process.process_id for process in processes) == list(range(chief + workers))
    assert {process.num_processes for process in processes} == {chief + workers}
    (first,) = (t for t, p in zip(training, processes, strict=True) if p.process_id == 0)
    assert {p.coordinator_address for p in processes} == {spec.task_address(first.job, first.index)}
    assert is_chief(spec, first)
    assert [is_chief(spec, task) for task in training].count(True) == 1

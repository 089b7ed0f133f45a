"""Who is chief, who is counted, and which process of JAX's cluster a task is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax import errors
from replicax.cluster_resolver import (
    ClusterSpec,
    JaxProcess,
    Task,
    id_in_cluster,
    is_chief,
    jax_process,
    worker_count,
)

WITH_CHIEF = ClusterSpec({"chief": ["c:1"], "worker": ["w0:1", "w1:1"], "ps": ["p0:1", "p1:1"]})
WITHOUT_CHIEF = ClusterSpec({"worker": ["w0:1", "w1:1"], "evaluator": ["e:1"]})
CHIEF, WORKER_0, WORKER_1 = Task("chief", 0), Task("worker", 0), Task("worker", 1)
PS, EVALUATOR = Task("ps", 0), Task("evaluator", 0)


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


@pytest.mark.parametrize("question", [worker_count, id_in_cluster])
def test_parameter_servers_are_not_counted(question):
    with pytest.raises(errors.ClusterSpecError, match="ps 0 is a parameter server"):
        question(WITH_CHIEF, PS)


@pytest.mark.parametrize("job", ["chief", "evaluator"])
def test_there_is_one_chief_and_one_evaluator_at_most(job):
    with pytest.raises(errors.ClusterSpecError, match=f"There must be at most one '{job}' task"):
        is_chief(ClusterSpec({job: ["a:1", "b:1"], "worker": ["w:1"]}), WORKER_0)


@pytest.mark.parametrize(
    ("spec", "task"),
    [
        (ClusterSpec({"workers": ["a:1"]}), Task("workers", 0)),
        (ClusterSpec({"worker": ["a:1"], "master": ["b:1"]}), WORKER_0),
        (WITH_CHIEF, Task("coordinator", 0)),
    ],
)
def test_other_roles_are_refused(spec, task):
    with pytest.raises(errors.ClusterSpecError, match="is none of chief"):
        is_chief(spec, task)


@pytest.mark.parametrize("task", [Task("worker", 2), Task("evaluator", 1)])
def test_a_task_that_is_not_there(task):
    with pytest.raises(errors.ClusterSpecError, match="has no task"):
        is_chief(WITHOUT_CHIEF, task)


def test_the_chief_is_process_0_and_the_workers_follow():
    assert jax_process(WITH_CHIEF, CHIEF) == JaxProcess("c:1", 3, 0)
    assert jax_process(WITH_CHIEF, WORKER_0) == JaxProcess("c:1", 3, 1)
    assert jax_process(WITH_CHIEF, WORKER_1) == JaxProcess("c:1", 3, 2)


def test_without_a_chief_worker_0_is_process_0():
    assert jax_process(WITHOUT_CHIEF, WORKER_0) == ("w0:1", 2, 0)
    assert jax_process(WITHOUT_CHIEF, WORKER_1) == ("w0:1", 2, 1)


def test_a_chief_alone_is_a_cluster_of_one():
    assert jax_process(ClusterSpec({"chief": ["c:1"]}), CHIEF) == ("c:1", 1, 0)


@pytest.mark.parametrize("task", [PS, EVALUATOR])
def test_who_does_not_train_is_no_process_of_jax(task):
    with pytest.raises(errors.ClusterSpecError, match="neither the chief nor a worker"):
        jax_process(WITH_CHIEF, task)


def test_all_workers_must_be_known():
    spec = ClusterSpec({"worker": {0: "a:1", 2: "c:1"}})
    with pytest.raises(errors.ClusterSpecError, match="no address for worker 1") as e:
        jax_process(spec, WORKER_0)
    assert "no address for worker 1" in str(e.value)


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

"""The resolver of TF_CONFIG; the pairs are those of TensorFlow's own tests."""

from __future__ import annotations

import json

import pytest

from replicax import errors
from replicax.cluster_resolver import ClusterSpec, TFConfigClusterResolver, task_of

CLUSTER = {
    "ps": ["ps0:2222", "ps1:2222"],
    "worker": ["worker0:2222", "worker1:2222", "worker2:2222"],
}


def resolver(*arguments, environ=None, **content):
    text = json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}} | content)
    return TFConfigClusterResolver(*arguments, environ={"TF_CONFIG": text})


def test_the_cluster_and_the_task():
    found = resolver()
    assert found.cluster_spec() == ClusterSpec(CLUSTER)
    assert (found.task_type, found.task_id) == ("ps", 0)
    assert found.num_accelerators() == {}


def test_master_is_the_address_of_the_task():
    assert resolver().master() == "ps0:2222"
    assert resolver().master("worker", 1) == "worker1:2222"


def test_master_with_a_protocol():
    assert resolver(rpc_layer="grpc").rpc_layer == "grpc"
    assert resolver(rpc_layer="grpc").master() == "grpc://ps0:2222"
    assert resolver(rpc_layer="grpc").master("worker", 1, "test") == "test://worker1:2222"


def test_session_master_wins():
    found = resolver(session_master="sessionmaster:2222", rpc_layer="grpc")
    assert found.master() == "sessionmaster:2222"
    assert found.master("worker", 1) == "sessionmaster:2222"


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}])
def test_without_tf_config_there_is_no_cluster(environ):
    found = TFConfigClusterResolver(environ=environ)
    assert found.cluster_spec() == ClusterSpec({})
    assert (found.task_type, found.task_id, found.rpc_layer) == (None, None, None)
    assert found.master() == ""


def test_master_of_a_single_task_is_empty():
    assert resolver(cluster={"ps": ["ps0:2222"]}).master() == ""
    assert resolver(cluster={"ps": ["ps0:2222"]}, rpc_layer="grpc").master() == ""


def test_the_index_as_a_text():
    assert resolver(task={"type": "worker", "index": "1"}).task_id == 1


def test_the_type_as_a_number():
    cluster = {"123456": ["ps0:2222"], "worker": ["worker0:2222"]}
    assert resolver(cluster=cluster, task={"type": 123456, "index": 0}).task_type == "123456"


def test_arguments_and_setters_override():
    found = resolver("worker", 2, "grpc", "google")
    assert (found.task_type, found.task_id, found.environment) == ("worker", 2, "google")
    assert found.master() == "grpc://worker2:2222"
    found.task_type, found.task_id, found.rpc_layer = "ps", 1, "test"
    assert found.master() == "test://ps1:2222"


def test_the_environment_is_none_by_default():
    assert resolver().environment is None


def test_without_a_task_the_task_is_not_known():
    found = TFConfigClusterResolver(environ={"TF_CONFIG": json.dumps({"cluster": CLUSTER})})
    assert (found.task_type, found.task_id) == (None, None)
    assert found.cluster_spec() == ClusterSpec(CLUSTER)
    for question in (found.master, lambda: task_of(found)):
        with pytest.raises(errors.ClusterSpecError, match="does not know its task"):
            question()


def test_the_variable_of_the_process_is_read_at_every_question(monkeypatch):
    found = TFConfigClusterResolver()
    monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": "worker", "index": 1}}))
    assert found.task_id == 1
    monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": "worker", "index": 2}}))
    assert found.task_id == 2


@pytest.mark.parametrize("question", ["cluster_spec", "master"])
def test_every_question_checks_all_of_it(question):
    broken = resolver(task={"type": "worker", "index": 7})
    with pytest.raises(errors.ClusterSpecError, match=r"no task 7.*It was read from TF_CONFIG="):
        getattr(broken, question)()
    with pytest.raises(errors.ClusterSpecError, match="task 7"):
        _ = broken.task_type

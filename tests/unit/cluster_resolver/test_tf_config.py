"""`TF_CONFIG`, whose pairs are those of TensorFlow's own tests, and the variables of SageMaker."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax import errors
from replicax.cluster_resolver import (
    ClusterSpec,
    SageMakerClusterResolver,
    Task,
    TFConfig,
    TFConfigClusterResolver,
    task_of,
)

WORKERS = {"worker": ["a:1", "b:1"]}


def read(**content):
    return TFConfig.from_json(json.dumps(content))


def test_everything_is_read():
    config = read(
        cluster={"chief": ["c:1"], **WORKERS},
        task={"type": "worker", "index": 1},
        rpc_layer="grpc",
        session_master="m:1",
    )
    spec = ClusterSpec({"chief": ["c:1"], **WORKERS})
    assert config == TFConfig(spec, Task("worker", 1), "grpc", "m:1")


@pytest.mark.parametrize("text", ["{}", "", "  \n"])
def test_nothing_is_read(text):
    assert TFConfig.from_json(text) == TFConfig(ClusterSpec({}))


def test_what_else_there_is_does_not_matter():
    assert read(cluster=WORKERS, environment="cloud", model_dir="m").spec == ClusterSpec(WORKERS)


@pytest.mark.parametrize(
    ("cluster", "task", "expected"),
    [
        (WORKERS, {"type": "worker", "index": 1}, Task("worker", 1)),
        (WORKERS, {"type": "worker", "index": "1"}, Task("worker", 1)),
        (WORKERS, {"type": "evaluator", "index": 0}, Task("evaluator", 0)),
        ({}, {"type": "worker", "index": 3}, Task("worker", 3)),
        ({"123456": ["a:1"]}, {"type": 123456, "index": 0}, Task("123456", 0)),
        ({"worker": {"1": "b:1"}}, {"type": "worker", "index": 1}, Task("worker", 1)),
    ],
)
def test_a_task_and_its_cluster_are_read(cluster, task, expected):
    config = read(cluster=cluster, task=task)
    assert (config.spec, config.task) == (ClusterSpec(cluster), expected)


jobs = st.dictionaries(
    st.sampled_from(["chief", "worker", "ps", "evaluator"]), st.integers(1, 4), min_size=1
)


@given(jobs, st.sampled_from([None, "grpc"]), st.data())
def test_what_is_written_is_read_again(jobs, rpc_layer, data):
    counts = {job: 1 if job in ("chief", "evaluator") else n for job, n in jobs.items()}
    spec = ClusterSpec({job: [f"{job}-{i}:7" for i in range(n)] for job, n in counts.items()})
    config = TFConfig(spec, data.draw(st.sampled_from([None, *spec.tasks])), rpc_layer)
    assert TFConfig.from_json(config.to_json()) == config


def test_a_sparse_cluster_is_written_and_read_again():
    config = TFConfig(ClusterSpec({"worker": {2: "c:1"}}), Task("worker", 2), session_master="m:1")
    assert TFConfig.from_json(config.to_json()) == config


def message(text):
    with pytest.raises(errors.ClusterSpecError) as caught:
        TFConfig.from_json(text)
    said = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert f"It was read from TF_CONFIG='{text[:300]}" in said
    # The example is there, and it works.
    example = said.partition("One that works: TF_CONFIG='")[2].removesuffix("'.")
    assert TFConfig.from_json(example).task == Task("worker", 0)
    return said


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{'cluster': {}}", "{▶'cluster': {}}"),
        ('{"cluster": {"worker": ["a:1", "b:1",]}}', '"worker": ["a:1", "b:1",▶]}}'),
        ('{"cluster": {"worker": ["a:1"]}', '{"cluster": {"worker": ["a:1"]}▶'),
        ("{cluster: {worker: [a:1]}}", "{▶cluster: {worker: [a:1]}}"),
    ],
)
def test_bad_json_is_shown_at_its_place(text, place):
    said = message(text)
    assert said.startswith("TF_CONFIG is no JSON: ")
    assert "Use double quotes" in said
    if len(text) < 30:
        assert place in said
    assert "▶" in said


def test_a_long_text_is_cut():
    text = json.dumps({"cluster": {"worker": [f"host{i}" for i in range(1000)]}})
    assert len(message(text)) < 1000


@pytest.mark.parametrize("text", ["[]", "3", '"worker"', "null", "true"])
def test_it_is_an_object(text):
    assert message(text).startswith("`TF_CONFIG` must be a JSON object")


def test_a_key_that_is_there_twice():
    said = message('{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}}')
    assert "'worker' is in TF_CONFIG twice." in said


@pytest.mark.parametrize(
    ("cluster", "shown"),
    [
        (["a:1"], "`cluster` must be a mapping"),
        ({"worker": ["a:1", "b"]}, "worker 1 must be host:port"),
        ({"chief": ["a:1", "b:1"]}, "got ['a:1', 'b:1']."),
        ({"worker": {"x": "a:1"}}, "Index 'x' is no integer from 0 in 'worker'"),
    ],
)
def test_a_wrong_cluster_is_shown_at_its_place(cluster, shown):
    assert shown in message(json.dumps({"cluster": cluster}))


@pytest.mark.parametrize(
    ("task", "shown"),
    [
        ({"type": "worker"}, 'got {"type": "worker"}.'),
        (None, "The task in TF_CONFIG needs a type and an index, got null."),
        ({"type": None, "index": 0}, "type of the task must be the name of a job, got null."),
        ({"type": True, "index": 0}, "got true."),
        ({"type": "worker", "index": -1}, "index of the task must be an integer from 0, got -1."),
        ({"type": "worker", "index": 0.5}, "got 0.5."),
        ({"type": "worker", "index": "one"}, 'got "one".'),
        ({"type": "worker", "index": True}, "got true."),
        ({"type": "worker", "index": None}, "got null."),
        ({"type": "worker", "index": 2}, "Job 'worker' has no task 2, only [0, 1]."),
        ({"type": "ps", "index": 0}, "no job 'ps', only 'worker'."),
        ({"type": "", "index": 0}, "`job` must be a name"),
    ],
)
def test_a_wrong_task_is_shown(task, shown):
    assert shown in message(json.dumps({"cluster": WORKERS, "task": task}))


@pytest.mark.parametrize("key", ["rpc_layer", "session_master"])
def test_the_optional_entries_are_texts(key):
    said = message(json.dumps({"cluster": WORKERS, key: 3}))
    assert f'"{key}" in TF_CONFIG must be a text, got 3.' in said


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
    assert (found.task_type, found.task_id, found.environment) == ("ps", 0, None)
    assert found.num_accelerators() == {}


@pytest.mark.parametrize(
    ("content", "asked", "master"),
    [
        ({}, (), "ps0:2222"),
        ({}, ("worker", 1), "worker1:2222"),
        ({"rpc_layer": "grpc"}, (), "grpc://ps0:2222"),
        ({"rpc_layer": "grpc"}, ("worker", 1, "test"), "test://worker1:2222"),
        ({"rpc_layer": "grpc", "session_master": "given:2222"}, (), "given:2222"),
        ({"rpc_layer": "grpc", "session_master": "given:2222"}, ("worker", 1), "given:2222"),
        ({"cluster": {"ps": ["ps0:2222"]}}, (), ""),
        ({"cluster": {"ps": ["ps0:2222"]}, "rpc_layer": "grpc"}, (), ""),
    ],
)
def test_master_is_the_address_of_a_task(content, asked, master):
    found = resolver(**content)
    assert (found.rpc_layer, found.master(*asked)) == (content.get("rpc_layer"), master)


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}])
def test_without_tf_config_there_is_no_cluster(environ):
    found = TFConfigClusterResolver(environ=environ)
    assert found.cluster_spec() == ClusterSpec({})
    assert (found.task_type, found.task_id, found.rpc_layer) == (None, None, None)
    assert found.master() == ""


def test_arguments_and_setters_override():
    found = resolver("worker", 2, "grpc", "google")
    assert (found.task_type, found.task_id, found.environment) == ("worker", 2, "google")
    assert found.master() == "grpc://worker2:2222"
    found.task_type, found.task_id, found.rpc_layer = "ps", 1, "test"
    assert found.master() == "test://ps1:2222"


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


JOB = {"SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-2"}


def test_the_hosts_are_workers():
    resolver = SageMakerClusterResolver(environ=JOB)
    assert resolver.cluster_spec().as_dict() == {"worker": ["algo-1:2223", "algo-2:2223"]}
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, None)
    assert resolver.master() == "algo-2:2223"
    assert resolver.environment is None


def test_arguments():
    resolver = SageMakerClusterResolver(1234, "worker", 0, "grpc", "google", environ=JOB)
    assert resolver.master() == "grpc://algo-1:1234"
    assert resolver.master("worker", 1, "test") == "test://algo-2:1234"
    assert resolver.environment == "google"


def test_a_single_host_has_no_master():
    environ = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
    resolver = SageMakerClusterResolver(environ=environ)
    assert resolver.master() == ""
    assert resolver.cluster_spec().as_dict() == {"worker": ["algo-1:2223"]}


def test_gpus():
    assert SageMakerClusterResolver(environ=JOB).num_accelerators() == {}
    some = {**JOB, "SM_NUM_GPUS": "8"}
    assert SageMakerClusterResolver(environ=some).num_accelerators() == {"GPU": 8}
    assert SageMakerClusterResolver(environ={**JOB, "SM_NUM_GPUS": "0"}).num_accelerators() == {}


@pytest.mark.parametrize("hosts", ["algo-1", "{}", "3"])
def test_hosts_that_are_no_list(hosts):
    with pytest.raises(errors.ClusterSpecError, match="`SM_HOSTS`.* JSON list"):
        SageMakerClusterResolver(environ={**JOB, "SM_HOSTS": hosts}).cluster_spec()


def test_a_host_that_is_not_in_the_list():
    resolver = SageMakerClusterResolver(environ={**JOB, "SM_CURRENT_HOST": "algo-3"})
    with pytest.raises(errors.ClusterSpecError, match="SM_CURRENT_HOST.*'algo-3'"):
        _ = resolver.task_id


@pytest.mark.parametrize("environ", [{}, {"SM_HOSTS": ""}])
def test_outside_of_a_training_job(environ):
    with pytest.raises(
        errors.ClusterSpecError, match="SM_HOSTS is not set. It is set by SageMaker"
    ):
        SageMakerClusterResolver(environ=environ).cluster_spec()

"""TF_CONFIG: what may stand in it, and what every mistake is answered with."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax import errors
from replicax.cluster_resolver import ClusterSpec, Task, TFConfig

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


@pytest.mark.parametrize("index", [1, "1"])
def test_the_index_may_be_a_text(index):
    assert read(cluster=WORKERS, task={"type": "worker", "index": index}).task.index == 1


def test_the_type_may_be_a_number():
    config = read(cluster={"123456": ["a:1"]}, task={"type": 123456, "index": 0})
    assert config.task == Task("123456", 0)


def test_a_job_may_be_a_sparse_dict():
    config = read(cluster={"worker": {"1": "b:1"}}, task={"type": "worker", "index": 1})
    assert config.spec.as_dict() == {"worker": {1: "b:1"}}


def test_the_evaluator_may_be_left_out_of_the_cluster():
    assert read(cluster=WORKERS, task={"type": "evaluator", "index": 0}).task.job == "evaluator"


def test_a_task_without_a_cluster():
    assert read(task={"type": "worker", "index": 3}).task == Task("worker", 3)


jobs = st.dictionaries(
    st.sampled_from(["chief", "worker", "ps", "evaluator"]), st.integers(1, 4), min_size=1
)


@given(jobs, st.sampled_from([None, "grpc"]), st.data())
def test_what_is_written_is_read_again(jobs, rpc_layer, data):
    counts = {job: 1 if job in ("chief", "evaluator") else n for job, n in jobs.items()}
    spec = ClusterSpec({job: [f"{job}-{i}:7" for i in range(n)] for job, n in counts.items()})
    task = data.draw(st.sampled_from([None, *spec.tasks]))
    config = TFConfig(spec, task, rpc_layer)
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
        (None, "got None."),
        ({"worker": "a:1"}, "job 'worker' must be a list of addresses"),
        ({"worker": ["a:1", "b"]}, "worker 1 must be host:port"),
        ({"worker": ["a:1", "b:99999"]}, "got 'b:99999'."),
        ({"worker": ["a:1", 7]}, "got 7."),
        ({"worker": ["a:1"], "ps": ["a:1"]}, "worker 0 and ps 0 have the same address 'a:1'."),
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
        ({"index": 0}, 'got {"index": 0}.'),
        (None, "The task in TF_CONFIG needs a type and an index, got null."),
        ("worker", 'got "worker".'),
        (
            {"type": None, "index": 0},
            "type of the task must be the name of a job, got null.",
        ),
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


def test_a_task_has_a_type_and_an_index():
    said = message(json.dumps({"cluster": WORKERS, "task": {}}))
    assert "needs a type and an index" in said


@pytest.mark.parametrize("key", ["rpc_layer", "session_master"])
def test_the_optional_entries_are_texts(key):
    said = message(json.dumps({"cluster": WORKERS, key: 3}))
    assert f'"{key}" in TF_CONFIG must be a text, got 3.' in said

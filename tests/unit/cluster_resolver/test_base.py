"""What a resolver answers by itself, and what a subclass has to add."""

from __future__ import annotations

import pytest

from replicax import errors
from replicax.cluster_resolver import ClusterResolver, ClusterSpec, Task, task_of


class TwoWorkers(ClusterResolver):
    def cluster_spec(self):
        return ClusterSpec({"worker": ["a:1", "b:1"]})


class AsInTensorFlow(TwoWorkers):
    """Sets the private attributes, as TensorFlow's documentation tells subclasses to."""

    def __init__(self):
        self._task_type, self._task_id, self._rpc_layer = "worker", 1, "grpc"


def test_a_resolver_knows_nothing_by_itself():
    resolver = TwoWorkers()
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (None, None, None)
    assert resolver.environment == ""
    assert resolver.num_accelerators("worker", 0, config_proto=None) == {}
    assert resolver.master() == ""


def test_what_is_set_is_answered():
    resolver = TwoWorkers()
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 0, "grpc"
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
    assert resolver.master() == "grpc://a:1"


def test_the_arguments_of_master_come_before_what_is_set():
    assert AsInTensorFlow().master() == "grpc://b:1"
    assert AsInTensorFlow().master(task_id=0) == "grpc://a:1"
    assert AsInTensorFlow().master("worker", 0, "test") == "test://a:1"


def test_the_task_of_a_resolver():
    assert task_of(AsInTensorFlow()) == Task("worker", 1)


@pytest.mark.parametrize(("job", "index"), [(None, None), ("worker", None), (None, 0)])
def test_a_resolver_without_a_task(job, index):
    resolver = TwoWorkers()
    resolver.task_type, resolver.task_id = job, index
    with pytest.raises(errors.ClusterSpecError, match="does not know its task") as e:
        task_of(resolver)
    assert f"TwoWorkers has task_type={job!r} and task_id={index!r}" in str(e.value)
    assert '"task": {"type": "worker", "index": 0}' in str(e.value)


def test_a_resolver_defines_its_cluster():
    with pytest.raises(TypeError, match="cluster_spec"):
        ClusterResolver()

"""What a resolver answers by itself; a cluster that is given; and the union of several."""

import pytest

from replicax import errors
from replicax.cluster_resolver import (
    ClusterResolver,
    ClusterSpec,
    SimpleClusterResolver,
    Task,
    UnionResolver,
    task_of,
)


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


SPEC = ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "c:1"]})


def test_what_is_given_is_answered():
    resolver = SimpleClusterResolver(
        SPEC, task_type="ps", task_id=0, environment="google", num_accelerators={"GPU": 2}
    )
    assert resolver.cluster_spec() == SPEC
    assert (resolver.task_type, resolver.task_id) == ("ps", 0)
    assert resolver.environment == "google"
    assert resolver.num_accelerators() == {"GPU": 2}
    assert SimpleClusterResolver(SPEC).num_accelerators() == {}


def test_master_names_a_task():
    resolver = SimpleClusterResolver(SPEC, rpc_layer="grpc", task_type="ps", task_id=0)
    assert resolver.master("worker", 0) == "grpc://b:1"
    assert resolver.master("worker", 1, rpc_layer="test") == "test://c:1"


def test_master_without_a_task_is_the_one_given_even_if_empty():
    # As in TensorFlow, also where the own task is known.
    resolver = SimpleClusterResolver(SPEC, rpc_layer="grpc", task_type="ps", task_id=0)
    assert resolver.master() == "grpc://"
    assert SimpleClusterResolver(SPEC, master="m:1").master() == "m:1"


def test_a_plain_dict_is_a_cluster():
    assert SimpleClusterResolver({"worker": ["a:1"]}).cluster_spec().jobs == ["worker"]


def test_a_list_is_no_cluster():
    with pytest.raises(errors.ClusterSpecError, match="`cluster`"):
        SimpleClusterResolver(["a:1"])


def union(*clusters, **options):
    first, *others = clusters
    resolvers = [SimpleClusterResolver(first, task_type="worker", task_id=1, rpc_layer="grpc")]
    return UnionResolver(*resolvers, *map(SimpleClusterResolver, others), **options)


def test_the_lists_of_a_job_are_joined():
    joined = union({"worker": ["b:1", "a:1"]}, {"worker": ["c:1"], "ps": ["d:1"]})
    assert joined.cluster_spec().as_dict() == {"worker": ["b:1", "a:1", "c:1"], "ps": ["d:1"]}


def test_a_task_that_two_resolvers_list_is_there_once():
    # TensorFlow's own example gives the number of GPUs like this; there, it doubles the cluster.
    tf_config = SimpleClusterResolver(SPEC, task_type="worker", task_id=0)
    gpus = SimpleClusterResolver(tf_config.cluster_spec(), num_accelerators={"GPU": 1})
    joined = UnionResolver(gpus, tf_config, task_type="worker", task_id=0)
    assert joined.cluster_spec() == SPEC
    assert joined.num_accelerators() == {"GPU": 1}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({1: "b:1"}, {3: "d:1"}, {1: "b:1", 3: "d:1"}),
        ({1: "b:1"}, {0: "a:1"}, ["a:1", "b:1"]),
        (["a:1"], {1: "b:1"}, ["a:1", "b:1"]),
        (["a:1", "b:1"], {1: "b:1", 4: "e:1"}, {0: "a:1", 1: "b:1", 4: "e:1"}),
    ],
)
def test_tasks_by_index_keep_their_index(one, other, expected):
    joined = union({"worker": one}, {"worker": other})
    assert joined.cluster_spec().as_dict() == {"worker": expected}


def test_two_tasks_with_one_index():
    with pytest.raises(errors.ClusterSpecError, match="index 1.*'x:1'") as e:
        union({"worker": {1: "b:1"}}, {"worker": ["a:1", "x:1"]}).cluster_spec()
    assert "'b:1' and 'x:1'" in str(e.value)


def test_the_rest_is_the_first_resolvers():
    joined = union({"worker": ["a:1", "b:1"]}, {"ps": ["c:1"]})
    assert (joined.task_type, joined.task_id, joined.rpc_layer) == ("worker", 1, "grpc")
    assert joined.environment == ""
    assert joined.master() == "grpc://"
    assert joined.master("ps", 0) == "grpc://c:1"


def test_overrides():
    joined = union({"worker": ["a:1"]}, {"ps": ["c:1"]}, rpc_layer="x", task_type="ps", task_id=0)
    assert (joined.task_type, joined.task_id, joined.rpc_layer) == ("ps", 0, "x")
    joined.task_type, joined.task_id, joined.rpc_layer = "worker", 5, "y"
    assert (joined.task_type, joined.task_id) == ("worker", 5)
    assert joined.master("ps", 0) == "y://c:1"


def test_a_union_of_nothing():
    with pytest.raises(errors.ClusterSpecError, match="Pass one or more"):
        UnionResolver()

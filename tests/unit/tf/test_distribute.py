"""`tf.distribute`: every name of it, the same objects, and the older spellings."""

import importlib

import pytest

import replicax as rx
from replicax import tf

# The names of tf.distribute, written down by hand from its documentation.
NAMES = {
    "": """CentralStorageStrategy CrossDeviceOps DistributedDataset DistributedIterator
        DistributedValues
        HierarchicalCopyAllReduce InputContext InputOptions InputReplicationMode MirroredStrategy
        MultiWorkerMirroredStrategy NcclAllReduce OneDeviceStrategy ParameterServerStrategy ReduceOp
        ReductionToOneDevice ReplicaContext RunOptions Server Strategy StrategyExtended TPUStrategy
        cluster_resolver coordinator experimental experimental_set_strategy get_replica_context
        get_strategy has_strategy in_cross_replica_context""",
    ".cluster_resolver": """ClusterResolver GCEClusterResolver KubernetesClusterResolver
        KubernetesExecutableLocation SimpleClusterResolver SlurmClusterResolver
        TFConfigClusterResolver TPUClusterResolver UnionResolver""",
    ".coordinator": """ClusterCoordinator PerWorkerValue RemoteValue
        experimental_get_current_worker_index""",
    ".experimental": """CentralStorageStrategy CollectiveCommunication CollectiveHints
        CommunicationImplementation CommunicationOptions MultiWorkerMirroredStrategy
        ParameterServerStrategy PreemptionCheckpointHandler PreemptionWatcher TPUStrategy
        TerminationConfig ValueContext coordinator partitioners""",
    ".experimental.coordinator": "ClusterCoordinator PerWorkerValues RemoteValue",
    ".experimental.partitioners": """FixedShardsPartitioner MaxSizePartitioner MinSizePartitioner
        Partitioner""",
}
METHODS = """scope run reduce gather experimental_distribute_dataset
    distribute_datasets_from_function
    experimental_distribute_datasets_from_function experimental_distribute_values_from_function
    experimental_local_results num_replicas_in_sync cluster_resolver extended"""


@pytest.mark.parametrize("namespace", NAMES)
def test_every_name_is_there_and_in_dir(namespace):
    module = importlib.import_module(f"replicax.tf.distribute{namespace}")
    names = NAMES[namespace].split()
    assert all(getattr(module, name) is not None for name in names)
    assert sorted(names) == sorted(dir(module))


def test_they_are_the_objects_of_replicax():
    assert tf.distribute.MirroredStrategy is rx.MirroredStrategy
    assert tf.distribute.experimental.ParameterServerStrategy is rx.ParameterServerStrategy
    assert tf.distribute.coordinator.PerWorkerValue is rx.coordinator.PerWorkerValues
    from replicax.tf.distribute.cluster_resolver import TFConfigClusterResolver

    assert TFConfigClusterResolver is rx.cluster_resolver.TFConfigClusterResolver


def test_spellings_of_tensorflow_1_are_the_same_objects():
    old, new = tf.compat.v1.distribute, tf.distribute
    assert new.CentralStorageStrategy is rx.CentralStorageStrategy
    assert old.get_strategy is new.get_strategy and old.OneDeviceStrategy is new.OneDeviceStrategy
    assert old.experimental.CollectiveHints is new.experimental.CollectiveHints
    assert old.cluster_resolver.UnionResolver is new.cluster_resolver.UnionResolver


def test_every_method_of_a_strategy_is_there():
    strategy = tf.distribute.get_strategy()
    assert all(hasattr(strategy, name) for name in METHODS.split())


def test_older_spellings_make_the_same_things(monkeypatch):
    older = tf.distribute.experimental
    hints = older.CollectiveHints(bytes_per_pack=5, timeout_seconds=2.0)
    assert hints == rx.experimental.CommunicationOptions(5, 2.0)
    assert older.CollectiveCommunication.NCCL is rx.experimental.CommunicationImplementation.NCCL
    made, newer = [], rx.MultiWorkerMirroredStrategy
    monkeypatch.setattr(newer, "__init__", lambda self, *arguments: made.append(arguments))
    strategy = older.MultiWorkerMirroredStrategy(communication="ring", cluster_resolver="cluster")
    assert isinstance(strategy, newer)
    ring = rx.experimental.CommunicationOptions(
        implementation=rx.experimental.CommunicationImplementation.RING
    )
    assert made == [("cluster", ring)]


def test_methods_of_tensorflow_1_say_what_to_use():
    strategy = tf.distribute.get_strategy()
    with pytest.raises(AttributeError, match="experimental_distr"):
        strategy.make_dataset_iterator(None)
    assert not hasattr(strategy, "no_such_method")


def test_what_is_missing_cannot_be_imported():
    with pytest.raises(ImportError, match="NoSuchStrategy"):
        from replicax.tf.distribute import NoSuchStrategy  # noqa: F401


@pytest.mark.parametrize("fetch", [True, False])
def test_pieces_are_tensors_and_say_where_they_are(fetch, mirrored):
    options = tf.distribute.InputOptions(experimental_fetch_to_device=fetch)
    dataset = tf.data.Dataset.range(3).batch(3)
    batch = next(iter(mirrored.experimental_distribute_dataset(dataset, options)))
    pieces = mirrored.experimental_local_results(batch)
    assert [piece.numpy().tolist() for piece in pieces] == [[0, 1], [2]]
    even = next(iter(mirrored.experimental_distribute_dataset(dataset.take(1).rebatch(2), options)))
    devices = [piece.backing_device for piece in mirrored.experimental_local_results(even)]
    assert devices == (["CPU:0", "CPU:1"] if fetch else ["CPU:0", "CPU:0"])


def test_options_of_xla_are_accepted(mirrored):
    options = tf.distribute.RunOptions(
        experimental_xla_options=tf.tpu.XLAOptions(enable_xla_dynamic_padder=False)
    )
    total = mirrored.run(lambda: tf.reduce_sum(tf.ones([3])), options=options)
    assert float(mirrored.reduce("SUM", total, axis=None)) == 6

"""`MultiWorkerMirroredStrategy` in one process; with several, see tests/multi_process."""

import json

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.cluster_resolver import SimpleClusterResolver, TFConfigClusterResolver

from helpers import assert_trees_close, tanh_data, tanh_net

WORKER = {"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}
TWO = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}


@pytest.fixture
def config(monkeypatch):

    def config(config):
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    return config


def test_without_a_cluster_all_devices_are_replicas():
    strategy = rx.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 8
    names = tuple(f"CPU:{index}" for index in range(8))
    assert strategy.extended.worker_devices == strategy.extended.parameter_devices == names
    assert strategy.extended.should_checkpoint
    assert strategy.extended.should_save_summary
    shown = "<MultiWorkerMirroredStrategy with 8 replica(s) on CPU:0, CPU:1, "
    assert repr(strategy).startswith(shown)


def trained(strategy):
    ((x, y),) = tanh_data(20)
    with strategy.scope():
        model = tanh_net()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    (batch,) = strategy.experimental_distribute_dataset([np.arange(20.0, dtype="float32")])
    total = strategy.run(lambda x: rx.get_replica_context().all_reduce("SUM", x.sum()), (batch,))
    return [*model.get_weights(), float(total)]


def test_one_worker_is_a_mirrored_strategy():
    assert_trees_close(trained(rx.MultiWorkerMirroredStrategy()), trained(rx.MirroredStrategy()))


def test_a_cluster_of_one_worker_needs_nobody(config):
    config(WORKER)
    strategy = rx.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 8
    assert isinstance(strategy.cluster_resolver, TFConfigClusterResolver)
    assert strategy.cluster_resolver.cluster_spec().as_dict() == WORKER["cluster"]
    assert strategy.cluster_resolver.task_type == "worker"


def test_an_evaluator_works_alone(config):
    config({"cluster": TWO, "task": {"type": "evaluator", "index": 0}})
    strategy = rx.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 8
    assert strategy.cluster_resolver.task_type == "evaluator"


def test_a_resolver_may_be_given():
    spec = rx.cluster_resolver.ClusterSpec({"worker": ["127.0.0.1:1"]})
    resolver = SimpleClusterResolver(spec, task_type="worker", task_id=0)
    assert rx.MultiWorkerMirroredStrategy(resolver).cluster_resolver is resolver


def test_the_size_of_packs_is_an_option():
    options = rx.experimental.CommunicationOptions(bytes_per_pack=8)
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    value = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", [1.0, 2.0, 3.0]))
    assert [float(each) for each in value] == [8.0, 16.0, 24.0]

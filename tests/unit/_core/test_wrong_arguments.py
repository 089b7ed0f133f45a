"""Arguments of wrong types are refused where they are given, with what they must be."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError, checks_types

WRONG = {
    "shard_optimizer": lambda: rx.MirroredStrategy(["CPU:0"], shard_optimizer="yes"),
    "compression": lambda: rx.MirroredStrategy(["CPU:0"], compression=[1]),
    "model_parallel": lambda: rx.ModelParallelStrategy(devices=["CPU:0"], model_parallel="2"),
    "layout_map": lambda: rx.ModelParallelStrategy(3, devices=["CPU:0"], model_parallel=1),
    "fn": lambda: rx.MirroredStrategy(["CPU:0"]).run(3),
    "axis": lambda: rx.MirroredStrategy(["CPU:0"]).gather(np.ones(2), "0"),
    "dataset_fn": lambda: rx.MirroredStrategy(["CPU:0"]).distribute_datasets_from_function(3),
    "strategy": lambda: rx.experimental_set_strategy("mirrored"),
    "num_packs": lambda: rx.NcclAllReduce("2"),
    "func": lambda: rx.function(3),
    "jit_compile": lambda: rx.function(print, jit_compile="yes"),
    "persistent": lambda: rx.GradientTape("yes"),
    "f": lambda: rx.custom_gradient(3),
    "experimental_fetch_to_device": lambda: rx.InputOptions("no"),
    "num_input_pipelines": lambda: rx.InputContext("2"),
    "bytes_per_pack": lambda: rx.experimental.CommunicationOptions("1"),
    "grace_period": lambda: rx.experimental.TerminationConfig(grace_period="2"),
    "exit_fn": lambda: rx.experimental.TerminationConfig(exit_fn=42),
    "max_to_keep": lambda: rx.train.CheckpointManager(rx.train.Checkpoint(), "x", "3"),
    "enable_async": lambda: rx.train.CheckpointOptions(enable_async="yes"),
    "directory": lambda: rx.train.latest_checkpoint(3),
    "path": lambda: rx.train.CheckpointReader(None),
    "every": lambda: rx.callbacks.AssertFinite("2"),
    "every_batches": lambda: rx.callbacks.BackupAndRestore("x", "2"),
    "log_dir": lambda: rx.callbacks.Profiler(None),
    "write_graph": lambda: rx.callbacks.TensorBoard(write_graph="no"),
    "private_threadpool_size": lambda: rx.data.ThreadingOptions("2"),
    "options": lambda: rx.MirroredStrategy(["CPU:0"]).run(print, options={"a": 1}),
    "kwargs": lambda: rx.MirroredStrategy(["CPU:0"]).run(print, (), [1]),
    "options ": lambda: rx.OneDeviceStrategy("CPU:0").experimental_distribute_dataset([], "x"),
    "experimental_replication_mode": lambda: rx.InputOptions(True, "PER_REPLICA"),
    "experimental_xla_options": lambda: rx.RunOptions(experimental_xla_options="--x"),
    "input_pipeline_id": lambda: rx.InputContext(2, 2, 2),
    "num_replicas_in_sync": lambda: rx.InputContext(2, 0, 0),
    "global_batch_size": lambda: rx.InputContext(2, 0, 2).get_per_replica_batch_size("4"),
    "name": lambda: rx.Variable(1.0, name=3),
    "trainable": lambda: rx.Variable(1.0, trainable="yes"),
    "shape": lambda: rx.Variable(1.0, shape=(2.5,)),
    "shape ": lambda: rx.data.ArraySpec((2.5,)),
    "path ": lambda: rx.data.TFRecordWriter(3),
    "variables": lambda: rx.assert_finite(1.0, keras.Sequential([keras.layers.Dense(1)])),
    "targets": lambda: rx.data.timeseries_dataset_from_array([1, 2, 3], 3, 2),
    "drop_remainder": lambda: rx.data.Dataset.range(3).batch(2, "no"),
    "reshuffle_each_iteration": lambda: rx.data.Dataset.range(3).shuffle(2, 1, "no"),
    "deterministic": lambda: rx.data.Dataset.range(3).map(abs, deterministic="no"),
    "output_signature": lambda: rx.data.Dataset.from_generator(list, output_signature=3),
    "num_workers": lambda: rx.launch.run("math:sqrt", "2"),
    "args": lambda: rx.launch.run("math:sqrt", 2, args="9"),
    "env": lambda: rx.launch.run("math:sqrt", 2, env="A=1"),
    "timeout": lambda: rx.launch.run("math:sqrt", 2, timeout=-1),
    "devices_per_worker": lambda: rx.launch.run("math:sqrt", 2, devices_per_worker=0),
    "topologies": lambda: rx.plan(None, topologies="cpu:2"),
    "strategies": lambda: rx.plan(None, strategies="mirrored"),
    "build": lambda: rx.verify(3),
    "implementation": lambda: rx.experimental.CommunicationOptions(implementation="TCP"),
    "sequence_stride": lambda: rx.data.timeseries_dataset_from_array([1, 2, 3], None, 2, 0),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named(name):
    with pytest.raises(UsageError, match=f"^`{name.strip()}` must be "):
        WRONG[name]()


@checks_types
def given(flag: bool = False, size: int = 1, *, rate: float | None = None) -> tuple:
    return flag, size, rate


def test_what_counts_as_a_number_or_a_flag_is_taken():
    assert given(np.True_, np.int64(3), rate=np.float32(2)) == (True, 3, 2.0)
    assert given(1, np.array(2), rate=None) == (1, 2, None)
    assert str(given(size=3.0)) == "(False, 3, None)"  # an int, as Keras makes it
    for wrong in ({"flag": 2}, {"size": 2.5}, {"rate": "2"}):
        with pytest.raises(UsageError, match="must be"):
            given(**wrong)


MISSPELLED = {
    "devices": lambda: rx.MirroredStrategy(devces=2),
    "drop_remainder": lambda: rx.data.Dataset.range(3).batch(2, drop_reminder=True),
    "jit_compile": lambda: rx.function(jit_compil=True),
    "log_dir": lambda: rx.callbacks.TensorBoard(logdir="logs"),
    "directory": lambda: rx.callbacks.BackupAndRestore(backup="logs"),  # in the list of all
}


@pytest.mark.parametrize("name", MISSPELLED)
def test_the_keyword_that_was_meant_is_named(name):
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        MISSPELLED[name]()


def test_zero_is_no_device():
    with pytest.raises(UsageError, match="No device 0 here"):
        rx.CentralStorageStrategy(["CPU:0"], 0)

import os
import shutil

import numpy as np
import pytest

import replicax as rx
from replicax import tf

from channels import as_workers


def test_checkpoints_are_those_of_replicax():
    assert issubclass(tf.train.Checkpoint, rx.train.Checkpoint)
    assert tf.train.ClusterSpec is rx.cluster_resolver.ClusterSpec
    assert {"Example", "latest_checkpoint", "load_variable"} <= set(dir(tf.train))


def test_messages_of_an_example():
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"ab"])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[3])),
        "scores": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 1.0])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    assert example.SerializeToString(deterministic=True) == rx.data.make_example(
        {"image": b"ab", "label": 3, "scores": np.array([0.5, 1.0])}
    )
    again = tf.train.Example()
    again.ParseFromString(example.SerializeToString())
    assert again.features.feature["label"].int64_list.value == [3]


def test_the_latest_checkpoint_may_be_a_file_of_weights(tmp_path):
    assert tf.train.latest_checkpoint(tmp_path) is None
    assert tf.train.get_checkpoint_state(tmp_path) is None
    for epoch in (1, 2, 10):
        (tmp_path / f"ckpt_{epoch}.weights.h5").touch()
        os.utime(tmp_path / f"ckpt_{epoch}.weights.h5", (0, 0))
    assert tf.train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/ckpt_10.weights.h5"
    checkpoint = tf.train.Checkpoint(step=rx.train.Value(1))
    paths = [checkpoint.save(tmp_path / "run") for _ in range(2)]
    assert tf.train.latest_checkpoint(tmp_path) == paths[1]
    state = tf.train.get_checkpoint_state(tmp_path)
    assert state is not None
    assert state.model_checkpoint_path == paths[1]
    assert state.all_model_checkpoint_paths == paths


def test_what_checkpoints_of_tensorflow_hold(tmp_path):
    step, generator = tf.Variable(1, name="step"), tf.random.Generator.from_seed(3)
    module = tf.Module()
    module.v = tf.Variable(2.0)
    iterator = iter(tf.data.Dataset.range(10).batch(2))
    checkpoint = tf.train.Checkpoint(
        step=step, generator=generator, module=module, iterator=iterator
    )
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=3)
    checkpoint.step.assign_add(4)
    next(iterator)
    path = manager.save()
    assert int(checkpoint.save_counter) == 1
    drawn, batch = generator.normal([2]).numpy(), next(iterator)
    checkpoint.step.assign(0)
    module.v.assign(0.0)
    checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    assert int(checkpoint.step) == 5
    assert float(module.v) == 2.0
    np.testing.assert_array_equal(generator.normal([2]).numpy(), drawn)
    np.testing.assert_array_equal(next(iterator), batch)
    assert path == manager.latest_checkpoint


def test_each_worker_may_save_to_a_folder_of_its_own(tmp_path):
    """As the guides do it: the chief's stays, the others remove theirs."""
    folder = tmp_path / "ckpt"

    def work(index):
        own = folder if index == 0 else tmp_path / f"workertemp_{index}" / "ckpt"
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        model.layers[0].bias.assign([7.0 + index])  # the chief's is what counts
        checkpoint = tf.train.Checkpoint(model=model)
        tf.train.CheckpointManager(checkpoint, directory=str(own), max_to_keep=1).save()
        if index:
            shutil.rmtree(own)
        latest = tf.train.latest_checkpoint(str(folder))
        checkpoint.restore(latest)
        return os.path.basename(latest or ""), float(model.layers[0].bias.numpy()[0])

    assert as_workers(2, work) == [("ckpt-1", 7.0)] * 2
    assert sorted(os.listdir(folder)) == ["checkpoint", "ckpt-1"]


def test_a_save_leaves_the_file_that_programs_look_for(tmp_path):
    checkpoint = tf.train.Checkpoint(step=tf.Variable(3))
    checkpoint.write(str(tmp_path / "one"))
    assert os.listdir(tmp_path) == ["one"]
    for _ in range(2):
        path = checkpoint.save(str(tmp_path / "ckpt"))
    assert (tmp_path / "checkpoint").read_text() == 'model_checkpoint_path: "ckpt-2"\n'
    assert tf.train.latest_checkpoint(str(tmp_path)) == path
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path / "run"), max_to_keep=1)
    assert [manager.save(), manager.save()][1] == manager.latest_checkpoint
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoint", "ckpt-2"]


def test_arguments_have_tensorflows_names(tmp_path):
    step = tf.Variable(3)
    checkpoint = tf.train.Checkpoint(step=step)
    path = checkpoint.write(file_prefix=str(tmp_path / "one"))
    step.assign(4)
    checkpoint.restore(save_path=path)
    assert int(step) == 3
    names = dict(tf.train.list_variables(ckpt_dir_or_file=path))
    (name,) = (one for one in names if one.startswith("step"))
    assert tf.train.load_variable(ckpt_dir_or_file=path, name=name) == 3
    numbers = tf.data.Dataset.range(3)
    numbers.save(str(tmp_path / "numbers"))
    loaded = tf.data.Dataset.load(str(tmp_path / "numbers"), numbers.element_spec)
    assert [int(one) for one in loaded] == [0, 1, 2]


@pytest.mark.parametrize("said", [b"my notes\n", b"\xff\xfe", b'model_checkpoint_path: "a"\nb\n'])
def test_a_file_of_others_beside_a_checkpoint_stays(tmp_path, said):
    (tmp_path / "checkpoint").write_bytes(said)
    tf.train.Checkpoint(step=tf.Variable(3)).save(str(tmp_path / "ckpt"))
    assert (tmp_path / "checkpoint").read_bytes() == said

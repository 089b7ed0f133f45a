"""Models go on from TensorFlow's checkpoints, as `record_tf_checkpoints.py` had them written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core.errors import CheckpointError, NothingRestored, UsageError

from . import checkpoint_models as models
from channels import as_workers

FOLDER = Path(__file__).with_name("tf_checkpoints")
RECORDED = json.loads(Path(__file__).with_name("recorded_checkpoints.json").read_text())
keras = tf.keras


def check(model, inputs, name, what="outputs"):
    np.testing.assert_allclose(np.asarray(model(inputs)), RECORDED[name][what], atol=2e-5)


def functional(optimizer=None):
    model = models.functional(keras)
    model.compile(optimizer or keras.optimizers.Adam(0.5), "mse")
    return model


@pytest.mark.parametrize("name", ["keras2_adam", "keras2_legacy", "keras2_momentum", "keras3_adam"])
def test_training_goes_on_from_tensorflow(name, caplog):
    own = keras.optimizers.SGD(0.5, momentum=0.9) if "momentum" in name else None
    model = functional(own)
    step = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, step=step)
    status = checkpoint.restore(tf.train.latest_checkpoint(FOLDER / name))
    status.assert_existing_objects_matched()
    if name == "keras2_legacy":  # which keeps beta_1, beta_2 and decay as variables
        assert {one.split("/")[1] for one in status.unused} == {"beta_1", "beta_2", "decay"}
    else:
        status.assert_consumed()
    assert (int(step), int(model.optimizer.iterations), int(checkpoint.save_counter)) == (2, 2, 1)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.05)
    check(model, models.INPUTS, name)
    models.train(model, 1)
    check(model, models.INPUTS, name, "after")
    assert not caplog.records


@pytest.mark.parametrize("name", ["keras2_adam", "keras2_legacy"])
def test_an_optimizer_that_is_built_later_has_its_slots(name):
    model, optimizer = models.functional(keras), keras.optimizers.Adam(0.5)
    checkpoint = tf.train.Checkpoint(optimizer=optimizer)
    checkpoint.restore(tf.train.latest_checkpoint(FOLDER / name)).expect_partial()
    checkpoint.model = model
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, "mse")
    check(model, models.INPUTS, name)
    models.train(model, 1)
    check(model, models.INPUTS, name, "after")


@pytest.mark.parametrize("name", ["keras2_sequential", "keras2_subclassed"])
@pytest.mark.parametrize("built", [True, False])
def test_load_weights(name, built):
    if name == "keras2_sequential":
        model, inputs = models.sequential(keras, built=built), models.INPUTS
    else:
        model, inputs = models.subclassed(keras), models.TOKENS
        if built:
            model(inputs)
    status = model.load_weights(FOLDER / name / "weights").expect_partial()
    if not built:
        with pytest.raises(NothingRestored, match="when they are built"):
            status.assert_consumed()
    check(model, inputs, name)
    status.assert_consumed()


def test_a_root_of_keras_3():
    model = models.sequential(keras)
    status = tf.train.Checkpoint(model).read(FOLDER / "keras3_sequential" / "weights")
    check(model, models.INPUTS, "keras3_sequential")
    status.assert_consumed()


def test_what_keras_3_left_out_is_missed():
    """On TensorFlow its models leave lists and dicts of layers out of checkpoints."""
    model = models.subclassed(keras)
    model(models.TOKENS)
    before = model.get_weights()
    with pytest.raises(UsageError, match="has no value"):
        model.load_weights(FOLDER / "keras3_subclassed" / "weights")
    unchanged(model, before)


def unchanged(model, before):
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_model_without_its_optimizer(caplog):
    model = models.functional(keras)
    status = tf.train.Checkpoint(model=model).restore(str(FOLDER / "keras2_adam" / "ckpt-1"))
    check(model, models.INPUTS, "keras2_adam")
    with pytest.raises(NothingRestored, match="optimizer/_iterations"):
        status.assert_consumed()
    assert not caplog.records
    checkpoint = tf.train.Checkpoint(layer=model.layers[1])
    with pytest.raises(UsageError, match="'layer'"):
        checkpoint.restore(str(FOLDER / "keras2_adam" / "ckpt-1"))


def test_values_and_iterators(caplog):
    step, iterator = rx.train.Value(0), iter(tf.data.Dataset.range(5))
    path = str(FOLDER / "keras2_adam" / "ckpt-1")
    tf.train.Checkpoint(step=step).restore(path).assert_existing_objects_matched()
    assert step.value == 2
    assert not caplog.records
    next(iterator)
    status = tf.train.Checkpoint(step=iterator).restore(path)  # of which it cannot be the state
    assert "'step' is not restored" in caplog.text
    assert int(next(iterator)) == 1
    with pytest.raises(NothingRestored):
        status.assert_existing_objects_matched()


def test_another_optimizer_says_what_it_did_not_get(caplog):
    model = functional(keras.optimizers.RMSprop(0.5))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    status = checkpoint.restore(str(FOLDER / "keras2_momentum" / "ckpt-1"))
    assert int(model.optimizer.iterations) == 2
    assert "'optimizer' is not restored" in caplog.text
    with pytest.raises(NothingRestored):
        status.assert_existing_objects_matched()


def test_another_model_is_refused_and_stays_as_it_was(tmp_path):
    layers = [keras.layers.Dense(3), keras.layers.Dropout(0.0), keras.layers.Dense(2)]
    other = keras.Sequential([keras.Input((3,)), *layers])
    before = other.get_weights()
    with pytest.raises(UsageError, match=r"layer_with_weights-1/bias.*\(1,\) of float32"):
        other.load_weights(FOLDER / "keras2_sequential" / "weights")
    unchanged(other, before)
    shutil.copytree(FOLDER / "keras2_sequential", tmp_path, dirs_exist_ok=True)
    data = tmp_path / "weights.data-00000-of-00001"
    content = data.read_bytes()
    # The last bytes are those of the graph of objects, the first those of a bias.
    for place, text in ((2, "checksum"), (len(content) - 1, "checksum")):
        data.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        model = models.sequential(keras)
        before = model.get_weights()
        with pytest.raises(CheckpointError, match=text):
            model.load_weights(tmp_path / "weights")
        unchanged(model, before)


def test_names_alone_are_not_restored():
    with pytest.raises(UsageError, match="load_variable"):
        tf.train.Checkpoint(a=tf.Variable([0.0, 0.0])).read(FOLDER / "pieces" / "sharded")


def test_modules_lists_and_dicts():
    module: Any = tf.Module()
    module.of = {"float32": tf.Variable(tf.zeros([2, 2])), "int64": tf.Variable([[0, 0], [0, 0]])}
    status = tf.train.Checkpoint(module=module).restore(str(FOLDER / "plain" / "ckpt-1"))
    assert module.of["float32"].numpy().tolist() == [[0, 1], [2, 3]]
    assert module.of["int64"].numpy().tolist() == [[0, 1], [2, 3]]
    assert "count/.ATTRIBUTES/VARIABLE_VALUE" in status.unused
    module.later = tf.Variable(5)  # no such name there: it stays
    module.none = tf.Variable(tf.ones([0, 3]))
    assert int(module.later) == 5
    assert "module/none/.ATTRIBUTES/VARIABLE_VALUE" not in status.unused
    assert "count/.ATTRIBUTES/VARIABLE_VALUE" in status.unused
    with pytest.raises(NothingRestored, match="module/later"):
        status.assert_existing_objects_matched()


def test_numbers_that_do_not_fit():
    module: Any = tf.Module()
    module.of = {"int64": tf.Variable(tf.zeros([2, 2]))}  # integers are no floats
    with pytest.raises(UsageError, match="int64"):
        tf.train.Checkpoint(module=module).restore(str(FOLDER / "plain" / "ckpt-1"))
    module.of = {"int64": tf.Variable(tf.zeros([2, 2], tf.int8))}
    tf.train.Checkpoint(module=module).restore(str(FOLDER / "plain" / "ckpt-1"))
    assert module.of["int64"].numpy().tolist() == [[0, 1], [2, 3]]
    module: Any = tf.Module()
    module.big = tf.Variable(5)
    with pytest.raises(UsageError, match="1099511627776"):
        tf.train.Checkpoint(module=module).restore(str(FOLDER / "plain" / "ckpt-1"))
    assert int(module.big) == 5


def test_the_manager_goes_on_from_tensorflow(tmp_path):
    shutil.copytree(FOLDER / "keras2_adam", tmp_path, dirs_exist_ok=True)
    model = functional()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, step=tf.Variable(0))
    manager = tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
    assert manager.restore_or_initialize() == f"{tmp_path}/ckpt-1"
    check(model, models.INPUTS, "keras2_adam")
    models.train(model, 1)
    assert manager.save() == f"{tmp_path}/ckpt-2"
    again = functional()
    checkpoint = tf.train.Checkpoint(model=again, optimizer=again.optimizer, step=tf.Variable(0))
    assert checkpoint.restore(tf.train.latest_checkpoint(tmp_path)).assert_consumed()
    check(again, models.INPUTS, "keras2_adam", "after")
    assert (tmp_path / "ckpt-1.index").exists()


def test_all_workers_restore_the_same(tmp_path):
    paths = [FOLDER / "plain" / "ckpt-1", FOLDER / "keras2_sequential" / "weights", tmp_path / "no"]

    def restored(own):
        module: Any = tf.Module()
        module.of = {"int32": tf.Variable([[0, 0], [0, 0]])}
        try:
            tf.train.Checkpoint(module=module).restore(str(own))
        except CheckpointError as error:
            return type(error)
        return module.of["int32"].numpy().tolist()

    assert as_workers(2, lambda _: restored(paths[0])) == [[[0, 1], [2, 3]]] * 2
    for other in paths[1:]:
        found = as_workers(2, lambda index, other=other: restored([paths[0], other][index]))
        assert found == [CheckpointError] * 2


def test_what_a_layer_derives_from_its_weights():
    """`Normalization` computes with constants that it makes of them."""
    layer = keras.layers.Normalization()
    status = tf.train.Checkpoint(layer).read(FOLDER / "keras2_normalization" / "weights")
    layer.build((None, 3))
    status.assert_consumed()
    check(layer, models.INPUTS, "keras2_normalization")

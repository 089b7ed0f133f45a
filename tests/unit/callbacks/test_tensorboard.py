"""What `fit` writes for TensorBoard, read back with TensorBoard's own readers."""

import jax
import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

import replicax as rx

from fitting import ROWS, TARGETS, dense_net, made


def read(folder):
    reader = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    reader.Reload()
    return reader


def tensors(folder, tag):
    return {e.step: tensor_util.make_ndarray(e.tensor_proto) for e in read(folder).Tensors(tag)}


def scalars(folder, tag):
    return {step: float(value) for step, value in tensors(folder, tag).items()}


def fit(model, callback, x=ROWS, y=TARGETS, **options):
    options = {"batch_size": 10, "verbose": 0} | options
    return model.fit(x, y, callbacks=[callback], **options)


def test_epochs_and_batches_are_written(mirrored, tmp_path):
    model = made(mirrored, dense_net)
    history = model.fit(
        ROWS,
        TARGETS,
        batch_size=10,
        epochs=2,
        verbose=0,
        validation_data=(ROWS, TARGETS),
        callbacks=[rx.callbacks.TensorBoard(tmp_path, update_freq=2)],
    ).history
    train, validation = tmp_path / "train", tmp_path / "validation"
    assert scalars(train, "epoch_loss") == pytest.approx(dict(enumerate(history["loss"])))
    assert scalars(validation, "epoch_loss") == pytest.approx(dict(enumerate(history["val_loss"])))
    assert scalars(train, "epoch_learning_rate") == pytest.approx({0: 0.1, 1: 0.1})
    # 27 rows in batches of 10: three batches an epoch, written after every second one.
    assert set(scalars(train, "batch_loss")) == {2, 4, 6}


@pytest.mark.parametrize("update_freq", ["step", 0, -1])
def test_a_wrong_frequency_is_refused(update_freq, tmp_path):
    with pytest.raises(rx.errors.UsageError, match="`update_freq`"):
        rx.callbacks.TensorBoard(tmp_path, update_freq=update_freq)


def test_every_batch_is_written(mirrored, tmp_path):
    board = rx.callbacks.TensorBoard(
        tmp_path, update_freq="batch", write_steps_per_second=True, write_graph=False
    )
    fit(made(mirrored, dense_net), board, epochs=2)
    assert set(scalars(tmp_path / "train", "batch_loss")) == {1, 2, 3, 4, 5, 6}
    for tag, steps in (("batch", {1, 2, 3, 4, 5, 6}), ("epoch", {0, 1})):
        paces = scalars(tmp_path / "train", f"{tag}_steps_per_second")
        assert set(paces) == steps
        assert all(0 < pace < 1e6 for pace in paces.values())


def test_evaluations_are_over_the_iterations(mirrored, tmp_path):
    board = rx.callbacks.TensorBoard(tmp_path)
    model = made(mirrored, dense_net)
    history = fit(model, board, epochs=2, validation_data=(ROWS, TARGETS)).history
    loss = model.evaluate(ROWS, TARGETS, batch_size=10, verbose=0, callbacks=[board])
    loss = loss[0] if isinstance(loss, list) else loss
    found = scalars(tmp_path / "validation", "evaluation_loss_vs_iterations")
    assert found == pytest.approx({3: history["val_loss"][0], 6: loss})


def test_weights_are_histograms(mirrored, tmp_path):
    board = rx.callbacks.TensorBoard(tmp_path, histogram_freq=2)
    model = made(mirrored, dense_net)
    fit(model, board, epochs=3)
    kernel = model.weights[0]
    rows = tensors(tmp_path / "train", f"{kernel.path}/histogram")
    assert set(rows) == {0, 2}
    values = np.asarray(kernel.value)
    assert rows[2][:, 2].sum() == values.size
    np.testing.assert_allclose([rows[2][0, 0], rows[2][-1, 1]], [values.min(), values.max()])


def test_the_layers_are_a_graph(tmp_path):
    inputs = keras.Input((4,), name="rows")
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="dense")], name="inner")
    twice = keras.layers.Dense(3, name="twice")
    outputs = keras.layers.Add(name="sum")([inner(inputs), twice(inputs), twice(inputs)])
    model = keras.Model(inputs, outputs, name="net")
    model.compile("sgd", "mse")
    fit(model, rx.callbacks.TensorBoard(tmp_path), np.ones((4, 4)), np.ones((4, 3)))
    nodes = {node.name: node for node in read(tmp_path / "train").Graph().node}
    assert {name: (node.op, list(node.input)) for name, node in nodes.items()} == {
        "net/rows": ("InputLayer", []),
        "net/inner/dense": ("Dense", ["net/rows"]),
        "net/twice": ("Dense", ["net/rows"]),
        "net/twice_1": ("Dense", ["net/rows"]),
        "net/sum": ("Add", ["net/inner/dense", "net/twice", "net/twice_1"]),
    }
    (shape,) = nodes["net/sum"].attr["_output_shapes"].list.shape
    assert [dim.size for dim in shape.dim] == [-1, 3]


def test_a_model_with_a_call_of_its_own_has_no_graph(tmp_path):
    class Own(keras.Model):
        def call(self, x):
            return x * self.scale

        def build(self, shape):
            self.scale = self.add_weight(shape=())

    model = Own()
    model.compile("sgd", "mse")
    fit(model, rx.callbacks.TensorBoard(tmp_path))
    assert not read(tmp_path / "train").Tags()["graph"]


@pytest.mark.parametrize("batches", [(2, 4), "2,4"])
def test_batches_are_profiled(mirrored, tmp_path, batches):
    model = made(mirrored, dense_net)
    fit(model, rx.callbacks.TensorBoard(tmp_path, profile_batch=batches), epochs=2)
    (file,) = (tmp_path / "train" / "plugins" / "profile").glob("*/*.xplane.pb")
    lines = [
        line
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes
        for line in plane.lines
    ]
    names = [event.name for line in lines for event in line.events]
    assert names.count("train") == 3


def test_a_fit_that_fails_ends_its_profile(mirrored, tmp_path):
    model = made(mirrored, dense_net)

    def stop(batch, logs):
        raise RuntimeError("stop")

    stopping = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    board = rx.callbacks.TensorBoard(tmp_path, profile_batch=(1, 9))
    with pytest.raises(RuntimeError, match="stop"):
        model.fit(ROWS, TARGETS, verbose=0, callbacks=[stopping, board])
    with jax.profiler.trace(str(tmp_path / "next")):
        pass  # refused while another one is under way
    assert list((tmp_path / "train" / "plugins").rglob("*.xplane.pb"))


@pytest.mark.parametrize("batches", [-1, (3, 2), (0, 2), "1,2,3", "x", (1, 2, 3), None])
def test_a_profile_of_no_batches_is_refused(tmp_path, batches):
    with pytest.raises(rx.errors.UsageError, match="profile_batch"):
        rx.callbacks.TensorBoard(tmp_path, profile_batch=batches)


@pytest.mark.parametrize("argument", ["write_images", "embeddings_freq"])
def test_what_is_not_written_is_said(tmp_path, caplog, argument):
    rx.callbacks.TensorBoard(tmp_path, **{argument: 1})
    assert argument in caplog.text
    caplog.clear()
    rx.callbacks.TensorBoard(tmp_path, **{argument: 0})
    assert not caplog.text

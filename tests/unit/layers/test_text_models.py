"""Models whose input is text: a part on the host, the rest on the devices."""

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError
from replicax.layers import _text_models

TEXTS = ["good film", "bad film", "very good", "very bad"] * 4
LABELS = np.array([1.0, 0.0] * 8, "float32")
WORDS = ["good", "bad", "film", "very"]


def vectorize():
    return rx.layers.TextVectorization(vocabulary=WORDS, output_sequence_length=3)


def classifier(**kwargs):
    text = keras.Input((1,), dtype="string")
    rows = keras.layers.Embedding(6, 4, mask_zero=True)(vectorize()(text))
    rows = keras.layers.GlobalAveragePooling1D()(rows)
    model = keras.Model(text, keras.layers.Dense(1, activation="sigmoid")(rows))
    model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy", metrics=["accuracy"], **kwargs)
    return model


def of_ids(model):
    """The same layers behind the text, as a model of its own."""
    ids = keras.Input((3,), dtype="int32")
    value = ids
    for layer in model.layers[2:]:
        value = layer(value)
    return keras.Model(ids, value)


def test_a_model_of_text_is_called_on_text():
    model = classifier()
    expected = of_ids(model)(vectorize()(TEXTS))
    np.testing.assert_allclose(model(np.array(TEXTS)), expected, rtol=1e-6)
    np.testing.assert_allclose(model.predict(TEXTS, verbose=0), expected, rtol=1e-6)
    np.testing.assert_allclose(model.predict_on_batch(np.array(TEXTS)), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["arrays", "data set", "generator"])
def test_text_is_trained_on_by_several_replicas(kind):
    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = classifier()
    batches = rx.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(8)
    if kind == "arrays":
        fed = {"x": np.array(TEXTS), "y": LABELS, "validation_data": (np.array(TEXTS), LABELS)}
    elif kind == "data set":
        fed = {"x": batches, "validation_data": batches}
    else:
        fed = {"x": (pair for pair in list(batches) * 6), "steps_per_epoch": 2, "shuffle": False}
    history = model.fit(**fed, epochs=3, verbose=0).history
    assert history["accuracy"][-1] == 1.0
    assert "val_accuracy" in history or kind == "generator"
    assert model.evaluate(batches, verbose=0)[1] == 1.0


def test_training_on_text_is_training_on_ids():
    one = classifier()
    before = one.get_weights()
    first = one.train_on_batch(np.array(TEXTS), LABELS)
    one.set_weights(before)
    again = of_ids(one)
    again.compile(keras.optimizers.Adam(0.1), "binary_crossentropy", metrics=["accuracy"])
    np.testing.assert_allclose(again.train_on_batch(vectorize()(TEXTS), LABELS), first, rtol=1e-5)


def test_a_sequential_model_may_begin_with_text():
    model = keras.Sequential([vectorize(), keras.layers.Embedding(6, 4), keras.layers.Flatten()])
    assert model(np.array(["good film"])).shape == (1, 12)
    assert model.predict(np.array(["good film", "x"]), verbose=0).shape == (2, 12)


def test_a_trained_model_is_put_behind_text():
    inner = keras.Sequential(
        [keras.Input((3,)), keras.layers.Embedding(6, 1), keras.layers.Flatten()]
    )
    outer = keras.Sequential([vectorize(), inner])
    expected = inner(vectorize()(["good film"]))
    np.testing.assert_allclose(outer.predict(["good film"], verbose=0), expected, rtol=1e-6)


def test_a_model_may_be_all_of_text():
    text = keras.Input((3,), dtype="string", name="features")
    stage = keras.Model({"features": text}, rx.layers.StringLookup(vocabulary=WORDS)(text))
    rows = np.array([["good", "bad", "x"], ["very", "x", "x"]])
    assert stage(rows).tolist() == [[1, 2, 0], [4, 0, 0]]
    assert stage({"features": rows}).tolist() == [[1, 2, 0], [4, 0, 0]]
    assert stage.predict(rows).tolist() == [[1, 2, 0], [4, 0, 0]]
    # An element of a data set, without the axis of the batch.
    single = rx.data.Dataset.from_tensor_slices({"features": rows.tolist()})
    single = single.map(lambda row: {"features": stage(row["features"])}).batch(2)
    assert next(iter(single))["features"].tolist() == [[1, 2, 0], [4, 0, 0]]
    assert stage.predict(rx.data.Dataset.from_tensor_slices(rows).batch(1)).tolist() == [
        [1, 2, 0],
        [4, 0, 0],
    ]


def test_numbers_stand_beside_text():
    text = keras.Input((1,), dtype="string", name="text")
    price = keras.Input((1,), name="price")
    count = rx.layers.TextVectorization(vocabulary=WORDS, output_mode="count")
    both = keras.layers.Concatenate()([count(text), price])
    model = keras.Model({"text": text, "price": price}, both)
    inputs = {"text": np.array(["bad bad"]), "price": np.array([[2.5]])}
    assert model(inputs).tolist() == [[0, 0, 2, 0, 0, 2.5]]
    assert model.predict(inputs, verbose=0).tolist() == [[0, 0, 2, 0, 0, 2.5]]


def test_a_model_of_text_is_saved(tmp_path):
    model = classifier()
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    found = again.predict(["good"], verbose=0)
    np.testing.assert_allclose(found, model.predict(["good"], verbose=0), rtol=1e-6)


def test_the_layers_of_a_model_of_text_are_not_called_once_more():
    model = classifier()
    model(np.array(["good"]))
    assert model.layers[-1].output is model.output


def test_text_for_a_layer_with_weights_is_refused():
    text = keras.Input((1,), dtype="string")
    model = keras.Model(text, classifier()(text))
    with pytest.raises(UsageError, match="has weights"):
        model(np.array([["good"]]))


def test_text_for_a_layer_of_devices_is_refused():
    text = keras.Input((1,), dtype="string")
    lookup = rx.layers.StringLookup(vocabulary=WORDS)
    model = keras.Model(text, lookup(keras.layers.Flatten()(text)))
    with pytest.raises(UsageError, match="'flatten.* in its place"):
        model.predict(np.array([["good"]]))


def test_text_of_another_source_is_refused():
    class Source(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return np.array(TEXTS), LABELS

    with pytest.raises(UsageError, match="dataset.map"):
        classifier().fit(Source(), verbose=0)


def test_the_seams_are_put_in_once():
    _text_models.install()
    before = keras.Model.__call__, keras.Model.fit
    _text_models.install()
    assert (keras.Model.__call__, keras.Model.fit) == before

"""`tf.shape` of model inputs whose sizes are not known: computed with, sliced by, passed on."""

import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

TABLE = np.arange(160.0, dtype="float32").reshape(1, 20, 8)
TENSOR = tf.constant(TABLE)
X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


def model_of(fn, shape=(None, 8), dtype="float32"):
    inputs = tf.keras.Input(shape, dtype=dtype)
    return keras.Model(inputs, fn(inputs))


@pytest.mark.parametrize("kind", [tf.constant, tf.Variable])
def test_a_table_of_positions_is_cut_to_the_length_of_the_input(kind):
    table = kind(TABLE)
    model = model_of(lambda x: x + table[:, : tf.shape(x)[1], :])
    assert model.output_shape == (None, None, 8)
    np.testing.assert_allclose(model(X), X + TABLE[:, :5], rtol=1e-6)
    np.testing.assert_allclose(model.predict(X[:, :3], verbose=0), X[:, :3] + TABLE[:, :3])


@pytest.mark.parametrize("kind", [np.asarray, tf.constant, tf.Variable])
def test_a_table_is_cut_in_the_call_of_a_layer(kind):
    class Positions(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.table = kind(TABLE)

        def call(self, x):
            return x + self.table[:, : tf.shape(x)[1], :]

    model = model_of(Positions())
    assert model.output_shape == (None, None, 8)
    np.testing.assert_allclose(model(X), X + TABLE[:, :5], rtol=1e-6)


def test_sizes_are_computed_with_and_make_shapes():
    def fn(x):
        rows, length = tf.shape(x)[0], tf.shape(x)[1]
        flat = tf.reshape(x, (rows, length * 8))
        back = tf.reshape(flat, [rows, -1, 4])[:, 1:length]
        places = tf.tile(tf.range(length)[tf.newaxis, :], [rows, 1])
        return back, places, tf.zeros((rows, length // 2 + 1)), -length + 2 * length

    model = model_of(fn)
    assert model.output_shape == [(None, None, 4), (None, None), (None, None), ()]
    back, places, zeros, length = model(X)
    np.testing.assert_array_equal(back, X.reshape(2, -1, 4)[:, 1:5])
    np.testing.assert_array_equal(places, [[0, 1, 2, 3, 4]] * 2)
    assert zeros.shape == (2, 3)
    assert int(length) == 5


def test_what_is_known_of_a_shape_is_a_number():
    assert int(tf.shape(tf.keras.Input((None, 8)))[-1]) == 8
    assert tf.shape(tf.keras.Input((4,), batch_size=3)).tolist() == [3, 4]


def test_a_mask_is_made_for_the_length_of_the_input():
    def fn(x):
        length = tf.shape(x)[1]
        return tf.matmul(tf.linalg.band_part(tf.ones((length, length)), -1, 0)[tf.newaxis], x)

    np.testing.assert_allclose(model_of(fn)(X), np.cumsum(X, axis=1), rtol=1e-5, atol=1e-6)


def test_a_model_with_sizes_is_saved_and_is_part_of_another(tmp_path):
    def fn(x):
        length = tf.shape(x)[1]
        return x[:, : length // 2] * tf.cast(length, "float32") + TENSOR[:, : length // 2]

    model = model_of(fn)
    expected = X[:, :2] * 5 + TABLE[:, :2]
    model.save(tmp_path / "model.keras")
    for again in (keras.models.load_model(tmp_path / "model.keras"), model_of(model)):
        assert again.output_shape == (None, None, 8)
        np.testing.assert_allclose(again(X), expected, rtol=1e-6)


def test_replicas_train_a_model_with_sizes(mirrored):
    with mirrored.scope():
        model = model_of(lambda x: tf.reduce_mean(x + tf.constant(TABLE)[:, : tf.shape(x)[1]], 1))
        model.compile("sgd", "mse")
    assert np.isfinite(model.evaluate(X, np.zeros((2, 8), "float32"), verbose=0))


def test_a_layer_that_is_wrong_for_all_sizes_shows_its_own_error():
    class Wrong(keras.layers.Layer):
        def call(self, x):
            return tf.matmul(x, tf.ones((7, tf.shape(x)[1])))

    with pytest.raises(ValueError, match=r"8.* and .*7"):
        model_of(Wrong())

    with pytest.raises(rx.errors.UsageError, match="tf.constant"):
        model_of(lambda x: TABLE[:, : tf.shape(x)[1]] + x)

    class Looks(keras.layers.Layer):
        def call(self, x):
            return tf.zeros(np.asarray(tf.reduce_sum(x)))

    with pytest.raises(rx.errors.UsageError):
        model_of(Looks())


def test_a_mistake_that_symbols_for_sizes_hide_is_shown():
    class Forgets(keras.layers.Layer):
        def call(self, x, mask=None):
            places = tf.range(tf.shape(x)[1])[:, None]
            if mask is not None:
                weights = mask
            return x + tf.cast(places, x.dtype) * weights

    with pytest.raises(UnboundLocalError, match="weights"):
        model_of(Forgets())


def test_images_of_any_size_are_resized_in_a_model(tmp_path):
    # Recorded from TensorFlow 2.21 with Keras 2.
    images = keras.Input((None, None, 1))
    sizes = tf.shape(images)
    model = keras.Model(images, tf.image.resize(images, [sizes[1] * 2, sizes[2] * 2]))
    assert model.output_shape == (None, None, None, 1)
    expected = [[0, 0.25, 0.75, 1], [0.5, 0.75, 1.25, 1.5]]
    expected += [[1.5, 1.75, 2.25, 2.5], [2, 2.25, 2.75, 3]]
    model.save(tmp_path / "model.keras")
    for one in (model, keras.models.load_model(tmp_path / "model.keras")):
        assert one(np.arange(4.0).reshape(1, 2, 2, 1))[0, ..., 0].numpy().tolist() == expected


def test_a_call_that_fails_is_traced_once_and_with_each_pair_of_sizes():
    class Fails(keras.layers.Layer):
        calls = 0

        def call(self, x):
            self.calls += 1
            raise ValueError("It fails.")

    layer = Fails()
    with pytest.raises(ValueError, match="It fails"):
        layer(tf.keras.Input((3,)))
    assert layer.calls == 3


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda n, both: tf.zeros([n, 2]), (3, 2)),
        (lambda n, both: tf.ones(both), (3, 2)),
        (lambda n, both: tf.fill([both[0], both[1]], 1.0), (3, 2)),
        (lambda n, both: tf.reshape(tf.range(6), [n, -1]), (3, 2)),
        (lambda n, both: tf.one_hot([0], n), (1, 3)),
        (lambda n, both: tf.range(both[0]), (3,)),
        (lambda n, both: tf.broadcast_to(1.0, both), (3, 2)),
    ],
)
def test_variables_are_sizes(make, shape):
    n, both = tf.Variable(3), tf.Variable([3, 2])
    assert make(n, both).shape == shape
    # Compiled code does not know them: the function runs as plain Python, as long as it must.
    assert tf.function(lambda: tf.identity(make(n, both)))().shape == shape

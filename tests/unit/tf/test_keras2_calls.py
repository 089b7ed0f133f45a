"""How layers of Keras 2 are called and made: flags without defaults, lengths, random numbers."""

import json

import numpy as np
import pytest

import replicax.tf as tf
from replicax.tf import keras


class Asking(keras.layers.Layer):
    def call(self, x, training):
        return x * 2 if training else x


class Around(keras.Model):
    def __init__(self):
        super().__init__()
        self.asking = Asking()

    def call(self, x, training=None):
        return self.asking(x)


def test_training_without_a_default_is_what_it_is_around():
    x = np.ones((1, 1))
    assert float(Asking()(x)[0, 0]) == 1
    assert float(Asking()(x, True)[0, 0]) == 2
    assert [float(Around()(x, training=flag)[0, 0]) for flag in (None, False, True)] == [1, 1, 2]
    flag = tf.function(lambda x, training: Asking()(x, training))
    assert [float(flag(x, tf.constant(given))[0, 0]) for given in (False, True)] == [1, 2]
    inputs = keras.Input((1,))
    model = keras.Model(inputs, Asking()(inputs))
    assert [float(model(x, training=flag)[0, 0]) for flag in (False, True)] == [1, 2]


@pytest.mark.parametrize("axis", [-1, None])
def test_a_normalization_adapts_to_a_data_set(axis):
    rows = np.random.default_rng(0).normal(3.0, 2.0, size=(11, 2, 3)).astype("float32")
    batches = tf.data.Dataset.from_tensor_slices(rows)
    expected = keras.layers.Normalization(axis)
    expected.adapt(rows)
    for data in (
        batches.batch(4),
        batches.map(lambda x: (x, 1)).batch(4),
        iter([rows[:8], rows[8:]]),
    ):
        layer = keras.layers.Normalization(axis)
        layer.adapt(data)
        np.testing.assert_allclose(layer(rows), expected(rows), rtol=1e-5, atol=1e-6)
    layer = keras.layers.Normalization(axis)
    layer.adapt(tf.data.Dataset.from_tensor_slices(rows.reshape(-1, 3)))
    np.testing.assert_allclose(layer(rows), expected(rows), rtol=1e-5, atol=1e-6)


class Squeezing(keras.layers.Dense):
    def call(self, x):
        return tf.argmax(super().call(x), axis=-1)

    def compute_output_shape(self, input_shape):
        return input_shape[0], input_shape[1] / 2


class Shuffled(keras.layers.Conv2D):
    def call(self, x):
        return tf.nn.depth_to_space(super().call(x), 2)


def test_the_output_of_an_own_layer_is_what_its_call_gives():
    assert Shuffled(8, 3, padding="same")(keras.Input((5, 5, 1))).shape == (None, 10, 10, 2)
    output = Squeezing(4)(keras.Input((6, 3)))
    assert output.shape == (None, 6)
    assert "int" in output.dtype


class Doubling(keras.layers.Layer):
    def call(self, x):
        return np.repeat(np.asarray(x), 2, axis=1)

    def compute_output_shape(self, input_shape):
        return input_shape[0], 2 * input_shape[1]


def test_a_layer_that_cannot_be_traced_says_its_shape():
    assert Doubling()(keras.Input((3,))).shape == (None, 6)


def test_the_shape_of_an_input_may_be_a_length():
    assert keras.Input(3).shape == keras.Input(shape=3).shape == (None, 3)


def test_the_layers_of_a_model_may_be_called_one_by_one():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    x = given = tf.ones((4, 3))
    for layer in model.layers:  # the first is the input, which Keras 3 does not let be called
        x = layer(x)
    assert np.array_equal(x, model(given))
    again = model.layers[1](model.layers[0](keras.Input((3,))))
    assert again.shape == (None, 2)


class Settings(dict):
    def __getattr__(self, name):
        return self[name]


def test_a_layer_holds_a_dict_of_the_programs_own_class():
    class Scaled(keras.layers.Layer):
        def __init__(self, settings):
            super().__init__()
            self.settings = settings

        def call(self, x):
            return self.settings.dense(x) * self.settings.scale

    layer = Scaled(Settings(scale=2.0, dense=keras.layers.Dense(1, kernel_initializer="ones")))
    assert layer(tf.ones((1, 3))).numpy() == 6
    assert len(layer.trainable_variables) == 2


def test_a_dict_of_another_class_that_is_a_dict_alone_is_that_of_keras():
    class Named(dict):
        pass

    layer = keras.layers.Layer()
    layer.parts = Named()
    layer.parts["late"] = keras.layers.Dense(1)
    layer.parts["late"].build((None, 3))
    assert len(layer.trainable_variables) == 2


def test_arguments_of_a_call_that_takes_any_number_are_no_flags():
    class Sum(keras.layers.Layer):
        def call(self, x, *others, training=None):
            return sum(others, x) + (100 if training else 0)

    one = tf.ones(())
    assert float(Sum()(one, one, one)) == 3
    assert float(Sum()(one, one, training=True)) == 102


def test_a_sequential_model_that_no_model_calls_has_an_input_and_an_output():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    first = keras.Model(model.input, model.layers[0].output)
    assert first(np.ones((4, 3))).shape == (4, 2)
    assert keras.Model(model.input, model.output)(np.ones((4, 3))).shape == (4, 1)
    outputs = model(keras.Input((3,)))
    assert model.output is outputs
    with pytest.raises(AttributeError, match="input"):
        _ = keras.Sequential([keras.layers.Dense(1)]).input
    states = keras.Sequential([keras.Input((3, 2)), keras.layers.LSTM(4, return_state=True)])
    assert [each.shape for each in states.output] == [(None, 4)] * 3


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (keras.layers.Dense, ["units"]),
        (keras.layers.Embedding, ["input_dim", "output_dim"]),
        (keras.layers.MultiHeadAttention, ["num_heads", "key_dim"]),
        (keras.layers.RepeatVector, ["n"]),
        (keras.layers.UpSampling1D, ["size"]),
    ],
)
@pytest.mark.parametrize("number", [np.int64(3), tf.constant(3), tf.constant([1, 2, 4])[-1] - 1])
def test_numbers_of_a_layer_may_be_numpys_or_tensors(layer, names, number):
    found = layer(number, **dict.fromkeys(names[1:], number)).get_config()
    assert [found[name] for name in names] == [3] * len(names)


@pytest.mark.parametrize(
    ("draw", "given", "mean"),
    [
        ("random_normal", (5.0, 0.1), 5),
        ("random_uniform", (2.0, 4.0), 3),
        ("truncated_normal", (), 0),
    ],
)
def test_random_numbers_of_the_backend_have_a_shape_of_the_batch(draw, given, mean):
    class Noise(keras.layers.Layer):
        def call(self, x):
            return getattr(keras.backend, draw)((tf.shape(x)[0], 500), *given)

    inputs = keras.Input((2,))
    found = keras.Model(inputs, Noise()(inputs))(np.ones((8, 2)))
    assert found.shape == (8, 500)
    assert float(np.mean(found)) == pytest.approx(mean, abs=0.1)


class Masked(keras.layers.Layer):
    supports_masking = True

    def call(self, inputs, others, mask=None):
        return inputs if mask is None else inputs * tf.cast(mask[..., None], inputs.dtype)


def test_the_mask_of_a_layer_with_several_inputs_is_the_first_ones():
    # Recorded from TensorFlow 2.21 with Keras 2; Keras 3 gives no mask.
    ones = keras.layers.Embedding(4, 1, mask_zero=True, embeddings_initializer="ones")
    x, y = np.array([[1, 2, 0]]), np.array([[1, 0, 0]])
    inputs = keras.Input((3,)), keras.Input((3,))
    model = keras.Model(inputs, Masked()(ones(inputs[0]), ones(inputs[1])))
    found = [
        model([x, y]),
        Masked()(ones(x), others=ones(y)),
        Masked()(ones(x), ones(y), mask=None),
    ]
    assert [np.ravel(one).tolist() for one in found] == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    assert np.ravel(Masked()(inputs=ones(x), others=ones(y))).tolist() == [1, 1, 0]


@pytest.mark.parametrize("is_built", [True, False])
def test_training_may_be_an_array_of_compiled_code(is_built):
    class Around(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm = keras.layers.BatchNormalization()
            self.dropout = keras.layers.Dropout(0.5)

        def call(self, x, training=None):
            return self.dropout(self.norm(x))

    model = Around()
    x = tf.constant(np.random.default_rng(0).normal(3, 1, (8, 4)), tf.float32)
    if is_built:
        model(x)
    compiled = tf.function(lambda x, training: model(x, training=training))
    plain = compiled(x, tf.constant(False))
    np.testing.assert_allclose(plain, model(x, training=False), rtol=1e-6)
    assert not np.any(model.norm.moving_mean)
    dropped = np.asarray(compiled(x, tf.constant(True)))
    assert 0 < np.sum(dropped == 0) < dropped.size
    np.testing.assert_allclose(model.norm.moving_mean, np.mean(x, 0) / 100, rtol=1e-4)


@pytest.mark.parametrize("three", [tf.constant(3), np.int64(3), (np.int64(3), tf.constant(3))])
def test_sizes_of_windows_are_integers_of_any_kind(three):
    image = keras.Input((9, 9, 3))
    layers = keras.layers
    for layer in (
        layers.Conv2D(2, three, strides=three),
        layers.Conv2DTranspose(2, three),
        layers.DepthwiseConv2D(three),
        layers.SeparableConv2D(2, three),
        layers.MaxPooling2D(three, strides=three),
        layers.UpSampling2D(three),
        layers.ZeroPadding2D(three),
        layers.Cropping2D(three),
    ):
        layer(image)
        type(layer).from_config(json.loads(json.dumps(layer.get_config())))


def test_a_recurrent_layer_takes_a_tensor_as_its_units():
    assert keras.layers.LSTM(tf.constant(4))(keras.Input((None, 3))).shape == (None, 4)


@pytest.mark.parametrize(
    "layer",
    [keras.layers.LSTM(4, dropout=0.5), keras.layers.Bidirectional(keras.layers.GRU(4))],
    ids=lambda layer: layer.name,
)
def test_a_tape_outside_compiled_code_sees_the_variables_of_a_recurrent_layer(layer):
    model = keras.Sequential([keras.Input((None, 3)), keras.layers.Masking(), layer])
    texts = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    texts[0, 3:] = 0

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(texts) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    for found, expected in zip(gradients(), tf.function(gradients)(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_tape_sees_what_a_recurrent_layer_became_since_its_first_call():
    layer = keras.layers.SimpleRNN(4)
    texts = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    for activation in (keras.activations.tanh, keras.activations.relu):
        layer.cell.activation = activation
        with tf.GradientTape():
            taped = layer(texts)
        np.testing.assert_allclose(taped, layer(texts), rtol=1e-6)


def test_an_unrolled_recurrent_layer_runs_step_by_step_under_a_tape():
    class Cell(keras.layers.SimpleRNNCell):
        def call(self, x, states, training=False):
            self.add_loss(tf.reduce_sum(x))
            return super().call(x, states, training=training)

    layer = keras.layers.RNN(Cell(2), unroll=True)
    with tf.GradientTape():
        layer(tf.ones((1, 5, 3)))
        assert len(layer.losses) == 5


def test_a_value_that_a_call_keeps_is_not_one_of_the_trace_that_found_its_shape():
    class Layer(keras.layers.Layer):
        kept = None

        def call(self, x):
            self.kept = x if self.kept is None else self.kept
            return x + self.kept

        def compute_output_shape(self, shape):
            return shape

    layer = Layer()
    model = keras.Sequential([keras.Input((3,)), layer])
    assert layer.kept is None
    assert model(tf.ones((1, 3))).tolist() == [[2.0] * 3]


def test_a_normalization_says_that_its_data_has_no_rows():
    with pytest.raises(ValueError, match="no rows"):
        keras.layers.Normalization().adapt(tf.data.Dataset.from_tensor_slices(np.zeros((0, 2))))


def test_a_variable_takes_the_place_of_a_weight_of_a_built_layer():
    layer = keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((3,)), layer])
    layer.kernel = tf.Variable(tf.ones((3, 1)))
    layer.bias = tf.Variable(tf.ones(1), trainable=False)
    assert model(tf.ones((1, 3))).tolist() == [[4.0]]
    assert [id(weight) for weight in layer.trainable_variables] == [id(layer.kernel)]
    assert len(layer.weights) == 2
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 3)), np.zeros((4, 1)), verbose=0)
    assert float(layer.kernel[0, 0]) < 1 == float(layer.bias[0])
    with pytest.raises(ValueError, match="cannot add new"):
        layer.another = tf.Variable(1.0)


def test_a_variable_stays_a_weight_while_an_attribute_holds_it():
    class Layer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self._scale = tf.Variable([1.0], name="private")
            self.scale = tf.Variable([2.0], name="public")
            self.parts = [tf.Variable([3.0], name="first"), tf.Variable([4.0], name="second")]
            self.part = self.parts[0]
            self.part = self.parts[1]
            self.scale, self._scale = self._scale, self.scale

        def build(self, shape):
            self.size = shape[-1]

    layer = Layer()
    names = {"private:0", "public:0", "first:0", "second:0"}
    assert {weight.name for weight in layer.weights} == names
    layer.another = tf.Variable([6.0], name="fifth")
    layer.another = tf.Variable([7.0], name="another")
    names.add("another:0")
    layer.places = {1: 2, "a": 3}
    layer.build((None, 1))
    layer.scale, layer._scale = layer._scale, layer.scale
    layer.part = tf.Variable([5.0], name="third")
    assert {weight.name for weight in layer.weights} == names | {"third:0"}


def test_a_lambda_layer_finds_its_shape_with_sizes_unknown():
    image = keras.Input((None, None, 3))
    resized = keras.layers.Lambda(lambda x: tf.image.resize(x, tf.shape(x)[1:3] * 2))(image)
    assert resized.shape == (None, None, None, 3)
    rows = keras.Input((None, 3))
    assert keras.layers.Lambda(lambda x: tf.reshape(x, (tf.shape(x)[0], -1, 6)))(rows).shape == (
        None,
        None,
        6,
    )


class Resized(keras.layers.Layer):
    def call(self, x, size):
        return tf.image.resize(x, size)


@pytest.mark.parametrize(
    "size",
    [
        lambda x: tf.shape(x)[1:3] // 2,
        lambda x: np.array(x.shape[1:3]) // 2,
        lambda x: tf.constant([4, 4]),
        lambda x: [np.int64(4), np.int64(4)],
    ],
)
def test_a_layer_takes_sizes_of_the_host_in_compiled_code(size, caplog):
    layer = Resized()
    compiled = tf.function(lambda x: layer(x, size=size(x)))
    assert compiled(tf.ones((1, 8, 8, 3))).shape == (1, 4, 4, 3)
    assert not caplog.records  # else it runs as plain Python


def test_the_line_that_makes_a_function_plain_python_is_named(caplog):
    layer = Resized()

    @tf.function
    def slow(x, size):
        return layer(x, size=size)

    assert slow(tf.ones((1, 8, 8, 3)), tf.constant([4, 4])).shape == (1, 4, 4, 3)
    (record,) = caplog.records
    said = record.getMessage()
    assert "test_keras2_calls.py:" in said
    assert "tf.image.resize(x, size)" in said
    assert "Arguments received" not in said

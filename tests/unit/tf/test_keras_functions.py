"""`tf.keras.random`, where it is not Keras' own; names and shapes of variables."""

import numpy as np
import pytest

import replicax.tf as tf

X = tf.constant([[1.0, 2.0], [3.0, 4.0]])
DRAWS = {
    "normal": lambda: tf.keras.random.normal((3,)),
    "uniform": lambda: tf.keras.random.uniform((3,)),
    "truncated_normal": lambda: tf.keras.random.truncated_normal((3,)),
    "randint": lambda: tf.keras.random.randint((3,), 0, 1 << 20),
    "gamma": lambda: tf.keras.random.gamma((3,), 2.0),
    "beta": lambda: tf.keras.random.beta((3,), 2.0, 3.0),
    "binomial": lambda: tf.keras.random.binomial((40,), 100, 0.5),
    "categorical": lambda: tf.keras.random.categorical(tf.zeros((1, 9)), 30),
    "dropout": lambda: tf.keras.random.dropout(tf.ones(64), 0.5),
    "shuffle": lambda: tf.keras.random.shuffle(tf.range(32)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_without_a_seed_are_new_in_each_call_of_compiled_code(name):
    draw = tf.function(DRAWS[name])
    assert not np.array_equal(draw(), draw())
    tf.keras.utils.set_random_seed(3)
    first = draw()
    tf.keras.utils.set_random_seed(3)
    np.testing.assert_array_equal(draw(), first)


def test_numbers_without_a_seed_are_new_in_each_step_of_fit():
    class Noise(tf.keras.layers.Layer):
        def call(self, x):
            return x * 0 + tf.keras.random.uniform((1,))

    model = tf.keras.Sequential([Noise()])
    model.compile(loss=lambda y, y_pred: y_pred)
    losses = model.fit(tf.ones((4, 1)), tf.ones((4, 1)), epochs=3, verbose=0).history["loss"]
    assert len(set(losses)) == 3


def test_variables_have_the_names_of_tensorflow():
    layer = tf.keras.layers.Dense(2, name="last")
    layer.build((None, 3))
    assert [tf.Variable(1.0).name, tf.Variable(1.0, name="w").name] == ["Variable:0", "w:0"]
    servers = tf.distribute.ParameterServerStrategy(num_workers=1, num_ps=1, engine="threads")
    for strategy in (tf.distribute.get_strategy(), servers):
        with strategy.scope():
            assert tf.Variable(1.0, name="block/w").name == "block/w:0"
    assert [weight.name for weight in layer.weights] == ["kernel", "bias"]  # Keras 3 has no more


@pytest.mark.parametrize("shape", [[None, 2], tf.TensorShape([None, 2]), tf.TensorShape(None)])
def test_open_sizes_of_a_variable_are_those_of_its_value(shape):
    variable = tf.Variable(X, shape=shape, validate_shape=False)
    assert variable.shape == (2, 2)
    assert variable.assign(2 * X).numpy().tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_an_optimizer_names_its_variables_by_those_of_a_layer():
    class Scale(tf.keras.layers.Layer):
        def build(self, shape):
            self.factor = tf.Variable(tf.ones([2, 2]), name="factor")

        def call(self, x):
            return x @ self.factor

    model = tf.keras.Sequential([tf.keras.Input((2,)), Scale(name="scale")])
    assert model.weights[0].name == "sequential/scale/factor:0"
    model.compile(tf.keras.optimizers.Adafactor(), "mse")
    model.fit(np.ones((2, 2)), np.zeros((2, 2)), verbose=0)
    assert len(model.optimizer.variables) > 2

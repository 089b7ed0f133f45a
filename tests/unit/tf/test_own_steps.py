"""`train_step(self, data)` and its sisters: steps of a batch, in `fit`, `evaluate`, `predict`."""

import contextlib

import numpy as np
import pytest

import replicax.tf as tf
from replicax.tf import keras

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


@pytest.fixture(params=["no strategy", "mirrored"])
def scope(request):
    if request.param == "no strategy":
        return contextlib.nullcontext
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope


class Compiled(keras.Model):
    """Trains by what `compile` was given."""

    def train_step(self, data):
        x, y, weights = data if len(data) == 3 else (*data, None)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(
                y, y_pred, sample_weight=weights, regularization_losses=self.losses
            )
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.compiled_metrics.update_state(y, y_pred, sample_weight=weights)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        self.compiled_metrics.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}

    def predict_step(self, data):
        return {"twice": 2 * self(data)}


class Inherited(keras.Model):
    """Does what Keras does."""

    def train_step(self, data):
        return {**super().train_step(data), "rows": tf.shape(data[0])[0]}


def made(kind, scope, **options):
    with scope():
        inputs = keras.Input((3,))
        dense = keras.layers.Dense(1, kernel_initializer="zeros", kernel_regularizer="l2")
        model = kind(inputs, dense(inputs))
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], **options)
    return model


def trained(model, **options):
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(X, Y, **options).history


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}, {"run_eagerly": True}])
def test_the_compiled_loss_and_metrics_are_those_of_fit(scope, options):
    expected, model = made(keras.Model, scope), made(Compiled, scope, **options)
    history = trained(expected)
    assert trained(model) == {key: pytest.approx(value) for key, value in history.items()}
    np.testing.assert_allclose(model.get_weights()[0], expected.get_weights()[0], rtol=1e-5)
    found, wanted = (one.evaluate(X, Y, verbose=0) for one in (model, expected))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_weights_of_samples_are_handed_to_the_step(scope):
    weights = np.arange(16.0)
    histories = [
        trained(made(kind, scope), sample_weight=weights) for kind in (keras.Model, Compiled)
    ]
    assert histories[1]["loss"] == pytest.approx(histories[0]["loss"])


def test_a_step_of_prediction_gives_all_rows_in_their_order(scope):
    model = made(Compiled, scope)
    model.set_weights([np.ones((3, 1)), np.zeros(1)])
    np.testing.assert_allclose(model.predict(X, batch_size=6, verbose=0)["twice"], 2 * Y, rtol=1e-5)


def test_keras_own_step_takes_a_batch_of_a_step_that_inherits_it(scope):
    history = trained(made(Inherited, scope))
    expected = trained(made(keras.Model, scope))
    assert history["loss"] == pytest.approx(expected["loss"])
    assert history["rows"][0] == (4 if scope is contextlib.nullcontext else 2)


class Adversaries(keras.Model):
    """Two networks with an optimizer each, which is no model that can be called."""

    def __init__(self):
        super().__init__()
        self.one, self.other = (
            keras.layers.Dense(1, use_bias=False, kernel_initializer=value)
            for value in ("zeros", "ones")
        )

    def compile(self, optimizers):
        super().compile()
        self.optimizers = optimizers

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        losses = []
        networks = zip((self.one, self.other), self.optimizers, strict=True)
        for network, optimizer in networks:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(network(x) - x)
            gradients = tape.gradient(loss, network.trainable_weights)
            optimizer.apply_gradients(zip(gradients, network.trainable_weights, strict=True))
            losses.append(loss)
        return {"one": losses[0], "other": losses[1], "loss": losses[0] + losses[1]}


def test_networks_and_optimizers_of_its_own_are_trained_by_a_model_without_call(scope):
    with scope():
        model = Adversaries()
        model.compile([keras.optimizers.SGD(0.1), keras.optimizers.SGD(1.0)])
    history = model.fit(np.ones((8, 1)), batch_size=4, epochs=2, verbose=0).history
    # Each of four steps subtracts the rate, from each replica once.
    replicas = 1 if scope is contextlib.nullcontext else 2
    np.testing.assert_allclose(model.one.get_weights()[0], [[-0.4 * replicas]], rtol=1e-6)
    np.testing.assert_allclose(model.other.get_weights()[0], [[1 - 4.0 * replicas]], rtol=1e-6)
    assert history["one"] == pytest.approx([-1 - 0.1 * replicas, -1 - 0.3 * replicas])
    assert history["loss"][0] == pytest.approx(-1 - 1.1 * replicas)
    logs = model.train_on_batch(np.ones((4, 1)), return_dict=True)
    assert logs["other"] == pytest.approx(-4.0 * replicas)


def test_a_model_without_metrics_has_none_to_update():
    inputs = keras.Input((3,))
    model = Compiled(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    assert list(trained(model)) == ["loss"]


class Returned(keras.Model):
    """Gives back the loss itself."""

    def __init__(self, by):
        super().__init__()
        self.by, self.dense = by, keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x)
            if self.by == "compute_loss":
                loss = self.compute_loss(y=y, y_pred=y_pred)
            else:
                loss = self.compiled_loss(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "own": loss}


@pytest.mark.parametrize("by", ["compute_loss", "compiled_loss"])
def test_the_loss_that_a_step_returns_is_the_one_of_its_batch(scope, by):
    told = []

    class Tell(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            told.append(float(logs["own"]))

    with scope():
        model = Returned(by)
        model.compile(keras.optimizers.SGD(0.0), "mse")
    rows = np.array([[1.0], [3.0], [5.0]], "float32")
    # Squares of 1, 3 and 5; the second batch has one row, which leaves a replica without any.
    history = model.fit(
        rows, 0 * rows, batch_size=2, shuffle=False, verbose=0, callbacks=[Tell()]
    ).history
    assert told[0] == pytest.approx(5.0)
    assert history["loss"] == pytest.approx([35 / 3])
    assert model.train_on_batch(rows[:2], 0 * rows[:2])[0] == pytest.approx(5.0)


@pytest.mark.parametrize("own", [False, True])
def test_a_variable_of_both_model_and_optimizer_is_one(scope, own):
    """Two entries for one variable would share a buffer, and one would undo the other's write."""
    rate = tf.Variable(0.5, trainable=False)

    class Halving(keras.layers.Dense):
        def __init__(self):
            super().__init__(1, kernel_initializer="ones")
            self.rate = rate

        def call(self, x, training=False):
            if training:
                self.rate.assign(self.rate / 2)
            return super().call(x)

    class Stateless(keras.Model):
        def train_step(self, state, data):
            return super().train_step(state, data)

    with scope():
        inputs = keras.Input((3,))
        kind = Stateless if own else keras.Model
        model = kind(inputs, Halving()(inputs))
        model.compile(keras.optimizers.SGD(rate), "mse")
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    model.evaluate(X, Y, batch_size=4, verbose=0)
    assert float(rate) == 0.5**9
    assert model.predict(X, verbose=0).shape == (16, 1)


def test_a_variable_may_belong_to_the_optimizer_no_more():
    rate = tf.Variable(0.5, trainable=False)
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    layer.rate = rate
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(keras.optimizers.SGD(rate), "mse")
    model.fit(X, Y + 1, batch_size=4, verbose=0)
    trained = model.get_weights()
    model.optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)
    model.fit(X, Y + 1, batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == 8
    assert not np.array_equal(model.get_weights()[0], trained[0])

"""`add_loss` and `add_metric` as programs of Keras 2 call them."""

import numpy as np
import pytest

import replicax.tf as tf
from replicax._core.errors import UsageError

X = np.arange(8, dtype="float32").reshape(4, 2)


def ones(**options):
    return tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", **options)


def with_loss():
    """A row's sum, and as a loss the mean of the squares of the sums: 1, 25, 81 and 169."""
    inputs = tf.keras.Input((2,))
    sums = ones(name="sums")(inputs)
    model = tf.keras.Model(inputs, sums)
    model.add_loss(tf.reduce_mean(tf.square(sums)))
    return model


def test_a_functional_model_trains_by_a_symbolic_loss():
    model = with_loss()
    model.compile(tf.keras.optimizers.SGD(0.01))
    losses = model.fit(X, batch_size=4, epochs=1, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, [69.0])
    # The gradient is 2 · mean(sum · row): sums 1, 5, 9, 13 and rows (0, 1), (2, 3), (4, 5), (6, 7).
    expected = 1 - 0.01 * 2 * np.array([[10 + 36 + 78], [1 + 15 + 45 + 91]]) / 4
    np.testing.assert_allclose(model.get_layer("sums").get_weights()[0], expected, rtol=1e-6)


def test_a_loop_finds_it_among_the_losses():
    model = with_loss()
    np.testing.assert_allclose(model(X), [[1], [5], [9], [13]])
    np.testing.assert_allclose(model.losses, [69.0])
    model(X[:1])
    np.testing.assert_allclose(model.losses, [1.0])


def test_it_is_saved_with_the_model(tmp_path):
    model = with_loss()
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    loaded(X)
    np.testing.assert_allclose(loaded.losses, [69.0])


def test_outputs_keep_their_names_for_losses():
    model = with_loss()
    model.compile("sgd", loss={"sums": "mse"})
    assert np.isclose(model.evaluate(X, np.zeros((4, 1)), verbose=0), 2 * 69.0)


def test_a_symbolic_loss_of_other_inputs_is_refused():
    model = with_loss()
    with pytest.raises(ValueError, match="inputs"):
        model.add_loss(tf.reduce_mean(tf.keras.Input((1,))))


def test_a_sequential_model_takes_none():
    model = tf.keras.Sequential([tf.keras.Input((2,)), ones()])
    with pytest.raises(UsageError):
        model.add_loss(tf.reduce_mean(model.layers[-1].output))


class Adding(tf.keras.Model):
    """Adds the sum of what it is given, and reports the largest."""

    def __init__(self):
        super().__init__()
        self.dense = ones()

    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs), inputs=inputs)
        self.add_metric(tf.reduce_max(inputs), name="largest", aggregation="mean")
        return self.dense(inputs)


class OnlyLoss(tf.keras.Model):
    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs))
        return inputs


def test_a_call_by_hand_with_symbolic_tensors_adds_no_loss_to_a_step():
    model = OnlyLoss()
    assert tuple(model.call(tf.keras.Input((2,))).shape) == (None, 2)
    model.compile("sgd")
    assert model.evaluate(X, batch_size=4, verbose=0) == 28.0
    model(X)
    np.testing.assert_allclose(model.losses, [28.0])


def test_a_function_is_called_for_the_loss_it_is_now():
    layer = ones()
    layer.build((None, 2))
    layer.add_loss(lambda: tf.reduce_sum(layer.kernel))
    assert [float(one) for one in layer.losses] == [2.0]
    model = tf.keras.Sequential([layer])
    model.compile(tf.keras.optimizers.SGD(0.5))
    model.fit(X, batch_size=4, verbose=0)
    np.testing.assert_allclose(layer.get_weights()[0], [[0.5], [0.5]])
    assert [float(one) for one in model.losses] == [1.0]


@pytest.mark.parametrize("in_scope", [False, True])
def test_a_metric_of_a_call_is_reported_by_fit(in_scope):
    strategy = tf.distribute.MirroredStrategy() if in_scope else tf.distribute.get_strategy()
    with strategy.scope():
        model = Adding()
        model.compile(tf.keras.optimizers.SGD(0.0))
    history = model.fit(X, batch_size=2, epochs=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["largest"], [5.0, 5.0])  # of 3 and 7
    np.testing.assert_allclose(history["loss"], [14.0, 14.0])


def test_a_functional_model_reports_a_symbolic_metric(tmp_path):
    model = with_loss()
    model.add_metric(tf.reduce_max(model.get_layer("sums").output), name="top", aggregation="mean")
    model.compile(tf.keras.optimizers.SGD(0.0))
    assert model.fit(X, batch_size=2, shuffle=False, verbose=0).history["top"] == [9.0]
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert [one.name for one in loaded.metrics] == ["top"]


def test_a_result_of_a_metric_is_that_metric():
    class Counting(tf.keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.total = tf.keras.metrics.Sum("total")

        def call(self, inputs):
            self.add_metric(self.total(inputs), name="other")
            return inputs

    model = tf.keras.Sequential([tf.keras.Input((2,)), Counting()])
    model.compile(loss="mse")
    logs = model.evaluate(X, X, batch_size=2, verbose=0, return_dict=True)
    assert logs["total"] == 28.0
    assert "other" not in logs


def test_a_value_without_a_name_is_refused():
    with pytest.raises(UsageError):
        tf.keras.layers.Layer().add_metric(tf.constant(1.0))


def test_a_layer_adds_a_metric_while_a_functional_model_is_made():
    class Spread(tf.keras.layers.Layer):
        def call(self, inputs):
            self.add_metric(tf.keras.backend.std(inputs), name="spread", aggregation="mean")
            return inputs

    x = np.arange(12, dtype="float32").reshape(4, 3)
    inputs = tf.keras.Input((3,))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(Spread()(inputs)))
    model.compile("sgd", "mse")
    found = model.evaluate(x, x[:, :1], batch_size=2, verbose=0, return_dict=True)
    assert found["spread"] == pytest.approx((x[:2].std() + x[2:].std()) / 2, rel=1e-5)

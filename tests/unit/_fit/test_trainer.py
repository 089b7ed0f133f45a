"""`fit`, `evaluate` and `predict` of owned models: what the seams do when things go wrong.

That they train as one device does is in conformance/test_fit.py.
"""

import contextlib

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._fit import trainer
from replicax._fit.trainer import Steps
from replicax._keras import _compat
from replicax.testing import MATRIX

from helpers import run_python

KINDS = ["mirrored_2", "central_storage_2", "one_device"]
X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")

# What the weights become when they are 7: 7 − 0.01 · 2 · (21 − 1) for each of the steps.
SEVEN = [[[7.0], [7.0]], [7.0]]
STEP = 0.01 * 2 * 20


@pytest.fixture(params=KINDS)
def strategy(request):
    return MATRIX[request.param]()


def net(strategy=None, **compile_args):
    """A model with weights of 7."""
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(**{"optimizer": "sgd", "loss": "mse", **compile_args})
    set_to_seven(model)
    return model


def set_to_seven(model):
    model.set_weights([np.full(w.shape, 7.0, "float32") for w in model.get_weights()])


def weights(model):
    return [w.tolist() for w in model.get_weights()]


class Failing(keras.utils.PyDataset):
    """Good batches, then one that cannot be read."""

    def __init__(self, good, total=8):
        super().__init__()
        self.good, self.total = good, total

    def __len__(self):
        return self.total

    def __getitem__(self, index):
        if index >= self.good:
            raise OSError("the disk is gone")
        return X[:4], Y[:4]


def fails(call):
    with pytest.raises(OSError, match="the disk is gone"):
        call()


def still_trains(model):
    before = weights(model)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert weights(model) != before


def interrupting(method):
    """A callback that stands for Ctrl-C when Keras calls this method of it."""

    def interrupt(self, *args, **kwargs):
        raise KeyboardInterrupt

    return type("Interrupting", (keras.callbacks.Callback,), {method: interrupt})()


# By data that fail after some batches, or by a callback that is interrupted.
@pytest.mark.parametrize(
    ("method", "ends", "steps"),
    [
        ("fit", 0, 0),
        ("fit", 1, 1),
        ("evaluate", 0, 0),
        ("evaluate", 2, 0),
        ("predict", 0, 0),
        ("predict", 2, 0),
        ("fit", "on_train_batch_begin", 0),
        ("fit", "on_train_batch_end", 1),
        ("fit", "on_epoch_end", 1),
        ("evaluate", "on_test_batch_end", 0),
        ("predict", "on_predict_batch_end", 0),
    ],
)
def test_what_ends_midway_keeps_the_steps_before(strategy, method, ends, steps):
    model, how = net(strategy), {"shuffle": False} if method == "fit" else {}
    data, error = (Failing(ends),), pytest.raises(OSError, match="the disk is gone")
    if isinstance(ends, str):
        data, error = (X, Y)[: 1 if method == "predict" else 2], pytest.raises(KeyboardInterrupt)
        how["callbacks"] = [interrupting(ends)]
    for is_first in (True, False):
        if not is_first:  # the weights of earlier calls do not come back
            model.fit(X, Y, verbose=0)
            model.train_on_batch(X, Y)
            set_to_seven(model)
        before = int(model.optimizer.iterations)
        with error:
            getattr(model, method)(*data, verbose=0, **how)
        for weight in model.get_weights():
            np.testing.assert_allclose(weight, 7.0 - steps * STEP, rtol=1e-5 if steps else 0)
        assert int(model.optimizer.iterations) == before + steps
    still_trains(model)


def test_callbacks_see_the_weights_of_each_batch(strategy):
    model, seen = net(strategy), []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(model.get_weights()[1].item())
    )
    model.fit(X, Y, batch_size=4, epochs=1, verbose=0, callbacks=[look])
    assert len(set(seen)) == len(seen) == len(X) // 4
    assert seen[-1] == model.get_weights()[1].item()


def test_a_validation_that_fails_keeps_the_epoch(strategy):
    model = net(strategy)
    fails(lambda: model.fit(X, Y, batch_size=8, validation_data=Failing(2), verbose=0))
    np.testing.assert_allclose(model.get_weights()[1], [7.0 - STEP], rtol=1e-5)
    still_trains(model)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_batch_of_the_wrong_shape_keeps_the_steps_before(strategy, steps):
    model = net(strategy, steps_per_execution=steps)

    class Wrong(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return (X[:4], Y[:4]) if index < 3 else (np.ones((4, 5), "float32"), Y[:4])

    with pytest.raises(ValueError, match="incompatible with the layer|axis -1"):
        model.fit(Wrong(), verbose=0, shuffle=False)
    # With two steps per execution, those of the last whole one are kept at least.
    assert int(model.optimizer.iterations) in (3, 4 - steps)
    assert np.isfinite(model.get_weights()[1]).all()
    still_trains(model)


def test_the_error_of_a_step_is_not_hidden_by_the_end_of_fit(mirrored):
    # At the end of `fit`, also after a failure, Keras stores the averages in the weights.
    model = net(mirrored, optimizer=keras.optimizers.SGD(use_ema=True))
    model.fit(X, Y, verbose=0)
    with pytest.raises(ValueError, match="axis -1"):
        model.fit(np.ones((8, 5), "float32"), Y, verbose=0)
    assert np.isfinite(model.get_weights()[1]).all()


def test_a_step_that_cannot_be_traced_changes_nothing(strategy):
    with strategy.scope():

        class Broken(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(1)
                self.broken = False

            def call(self, x):
                if self.broken:
                    raise KeyError("mine")
                return self.dense(x)

        model = Broken()
        model.compile("sgd", "mse")
    model.fit(X[:4], Y[:4], verbose=0)
    set_to_seven(model)
    model.broken = True  # found when the step is traced for another batch size
    with pytest.raises(KeyError, match="mine"):
        model.fit(X, Y, verbose=0)
    with pytest.raises(KeyError, match="mine"):
        model.train_on_batch(X, Y)
    assert weights(model) == SEVEN
    model.broken = False
    still_trains(model)


def test_a_callback_may_read_and_change_the_weights(strategy):
    model, seen = net(strategy), []

    class Reset(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.jax_state_sync()
            seen.append(weights(self.model)[1][0])
            set_to_seven(self.model)

    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[Reset()])
    assert seen == pytest.approx([7.0 - STEP] * 2)
    assert weights(model) == SEVEN


def test_a_model_belongs_to_the_scope_it_was_made_in(strategy):
    assert _compat.strategy_of(net(strategy)) is strategy
    assert _compat.strategy_of(keras.Sequential()) is None


def test_a_model_is_not_compiled_in_the_scope_of_another_strategy(strategy):
    model = net(strategy)
    other = rx.OneDeviceStrategy("CPU:0")
    match = "Cannot compile a model of"
    with other.scope(), pytest.raises(rx.errors.MixedStrategies, match=match) as caught:
        model.compile("adam", "mse")
    assert repr(strategy) in str(caught.value)
    still_trains(model)


def test_a_model_of_no_strategy_is_not_compiled_in_a_scope(strategy):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with strategy.scope(), pytest.raises(rx.errors.MixedStrategies, match="a model of no strategy"):
        model.compile("sgd", "mse")


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "train_on_batch"])
def test_a_model_does_not_run_in_the_scope_of_another_strategy(strategy, method):
    model = net(strategy)
    arguments = (X,) if method == "predict" else (X, Y)
    other = rx.OneDeviceStrategy("CPU:0")
    with other.scope(), pytest.raises(rx.errors.MixedStrategies, match="Mixing different"):
        getattr(model, method)(*arguments)
    assert weights(model) == SEVEN


def test_no_distribution_is_left_behind(strategy):
    model = net(strategy)
    model.fit(X, Y, verbose=0)
    fails(lambda: model.predict(Failing(1), verbose=0))
    assert _compat.distribution() is None
    assert rx.has_strategy() is False


def test_steps_are_made_once_and_anew_on_demand(strategy):
    model = net(strategy)
    for kind in ("train", "test", "predict"):
        make = getattr(model, f"make_{kind}_function")
        make()
        steps = getattr(model, f"{kind}_function")
        assert isinstance(steps, Steps)
        make()
        assert getattr(model, f"{kind}_function") is steps
        make(force=True)
        assert getattr(model, f"{kind}_function") is not steps


def test_compiling_again_takes_the_new_optimizer(strategy):
    model = net(strategy)
    model.fit(X, Y, verbose=0)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    before = weights(model)
    model.fit(X, Y, verbose=0)
    assert weights(model) == before


def test_a_model_without_a_strategy_has_keras_own_functions():
    model = net()
    rx.get_strategy()
    model.make_train_function()
    assert not isinstance(model.train_function, Steps)


def test_a_plain_model_does_not_see_the_scope_it_is_called_in(strategy):
    model = net()
    with strategy.scope():
        model.fit(X, Y, verbose=0)
        assert _compat.distribution() is strategy.extended.distribution
    assert {len(variable.value.devices()) for variable in model.variables} == {1}


def test_keras_own_distribution_still_works(mirrored, caplog):
    del mirrored  # made, so that the seams are in
    trainer._warned_outside_scope.clear()
    devices = [f"cpu:{number}" for number in range(2)]
    layout = keras.distribution.DataParallel(devices=devices)
    with layout.scope():
        model = net()
        model.fit(X, Y, verbose=0)
    assert not isinstance(model.train_function, Steps)
    assert {len(variable.value.devices()) for variable in model.variables} == {2}
    assert not caplog.records  # it does not train on one device


PLAIN = """
import hashlib
import numpy as np
import jax
import keras

def train():
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((4,)), layers.Dense(4), layers.BatchNormalization(),
        layers.Dropout(0.5), layers.Dense(1, kernel_regularizer="l2"),
    ])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1, clipnorm=1.0))
    model.compile(optimizer, "mse", metrics=["mae"])
    logs = model.fit(x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x, y)).history
    numbers = [*model.get_weights(), model.predict(x, verbose=0), model.train_on_batch(x, y)]
    everything = b"".join(np.asarray(one).tobytes() for one in [*numbers, *logs.values()])
    return hashlib.sha256(everything).hexdigest()

before = train()
import replicax as rx
with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    keras.Variable(1.0)
assert hasattr(keras.optimizers.SGD.apply, "_replicax_original")
print("same" if train() == before else "different")
"""


def test_plain_keras_gives_the_same_bits_with_the_seams():
    assert run_python(PLAIN, JAX_NUM_CPU_DEVICES="2").split()[-1:] == ["same"]


def test_keras_looks_for_variables_in_no_step(strategy, monkeypatch):
    model = net(strategy)
    tracker, looked = type(model._tracker), []
    track = tracker.track

    def noted(self, value):
        looked.append(value)
        return track(self, value)

    monkeypatch.setattr(tracker, "track", noted)
    model.fit(X, Y, batch_size=1, verbose=0)
    looked.clear()
    model.fit(X, Y, batch_size=1, verbose=0)
    assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(looked))
    model.extra = [1]  # at what a user sets it looks as ever
    assert looked[-2:] == [[1], 1]


def test_a_model_of_no_scope_is_said_to_be_keras_own_once(caplog):
    trainer._warned_outside_scope.clear()
    model = net()
    for _ in range(2):
        model.fit(X, Y, verbose=0)
    net(MATRIX["mirrored_2"]()).fit(X, Y, verbose=0)
    assert [record.name for record in caplog.records] == ["replicax"]
    assert model.name in caplog.text


def test_a_model_of_the_default_strategy_is_not_said_to_be_keras_own(caplog):
    trainer._warned_outside_scope.clear()
    model = net(rx.get_strategy())
    model.fit(X, Y, verbose=0)
    assert not caplog.records


def pictures(strategy, layer, **how):
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((6, 6, 1)), layer()])
        model.add(keras.layers.Flatten())
        model.add(keras.layers.Dense(2))
        model.compile("sgd", "mse", **how)
    rows = np.random.default_rng(0).normal(size=(7, 6, 6, 1)).astype("float32")
    losses = model.fit(rows, rows[:, :2, 0, 0], batch_size=4, epochs=2, verbose=0).history["loss"]
    return model, losses


def turned():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.RandomRotation(0.2, seed=1),
            layers.RandomTranslation(0.2, 0.2, seed=2),
            layers.RandomZoom(0.2, seed=3),
        ]
    )


def test_layers_that_turn_images_are_compiled(caplog):
    plain, expected = pictures(None, turned)
    assert not plain.jit_compile  # Keras would compile it, if not for TensorFlow
    caplog.clear()
    model, losses = pictures(MATRIX["mirrored_2"](), turned)
    assert model.jit_compile
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert not caplog.records
    assert not pictures(MATRIX["mirrored_2"](), turned, jit_compile=False)[0].jit_compile


class Uncompiled(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.supports_jit = False

    def call(self, x):
        return x


def test_a_layer_that_keeps_a_model_from_being_compiled_is_named_once(caplog):
    model, _ = pictures(MATRIX["mirrored_2"](), Uncompiled)
    model.fit(np.ones((3, 6, 6, 1)), np.ones((3, 2)), verbose=0)
    assert ["Uncompiled" in text for text in caplog.messages] == [True]
    caplog.clear()
    pictures(MATRIX["one_device"](), Uncompiled)
    assert not caplog.records


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("rows", [0, 8])
def test_data_without_a_batch_are_refused(strategy, method, rows):
    data = (X[:rows],) if method == "predict" else (X[:rows], Y[:rows])
    with pytest.raises(rx.errors.UsageError, match="no batches"):
        getattr(net(strategy), method)(*data, batch_size=-1 if rows else None, verbose=0)


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_callback_may_end_an_endless_data_set(strategy, method, caplog):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 3

        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = batch == 3

    endless = rx.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(3)
    steps = {"steps_per_epoch" if method == "fit" else "steps": 2}
    getattr(net(strategy), method)(endless, verbose=0, **steps)
    assert not caplog.records
    getattr(net(strategy), method)(endless, verbose=0, callbacks=[Stop()])
    assert "steps_per_epoch" in caplog.text

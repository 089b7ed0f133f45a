"""After the first steps nothing is traced or compiled any more, and no value is fetched."""

import contextlib

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


@contextlib.contextmanager
def nothing_compiled():
    found = []

    def heard(event, seconds, **about):
        if event.startswith("/jax/core/compile"):
            found.append((event, about))

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
    assert not found


@contextlib.contextmanager
def nothing_fetched(monkeypatch):
    """On a CPU JAX's own guard lets everything pass: reads are views."""
    kind, found = type(jnp.zeros(())), []

    def noted(name):
        original = getattr(kind, name)

        def method(self, *args, **kwargs):
            found.append(name)
            return original(self, *args, **kwargs)

        return method

    with monkeypatch.context() as patch:
        for name in (
            "__array__",
            "__bool__",
            "__float__",
            "__index__",
            "__int__",
            "tolist",
            "item",
        ):
            patch.setattr(kind, name, noted(name))
        with jax.transfer_guard_device_to_host("disallow"):
            yield
    assert not found


def net(strategy, **compile_args):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **compile_args)
    return model


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("mirrored_2", "run"),
        ("central_storage_2", "run"),
        ("one_device", "function"),
        ("mirrored_2", "function"),
        ("central_storage_2", "function"),
    ],
    indirect=["strategy"],
)
def test_a_custom_loop_settles(strategy, monkeypatch, kind):
    model = net(strategy)
    optimizer, loss_fn = model.optimizer, keras.losses.MeanSquaredError()

    def replica_fn(x, y):
        if kind == "function":
            with rx.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True))
            grads = tape.gradient(loss, model.trainable_variables)
        else:
            loss, grads = rx.value_and_grad(lambda: loss_fn(y, model(x, training=True)), model)()
        optimizer.apply(grads, model.trainable_variables)
        return loss

    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_fn, args=batch), axis=None)

    step = step if kind == "run" else rx.function(step)
    batches = list(strategy.experimental_distribute_dataset([(X[:24], Y[:24])] * 6))
    for batch in batches[:3]:
        step(batch)
    with nothing_compiled(), nothing_fetched(monkeypatch):
        for batch in batches[3:]:
            step(batch)
    assert int(optimizer.iterations) == 6


class Watch(keras.callbacks.Callback):
    """Hears of each batch, and begins to watch after the third."""

    def __init__(self, watching):
        super().__init__()
        self.stack, self.watching, self.batches = contextlib.ExitStack(), watching, 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == 3:
            self.stack.enter_context(nothing_compiled())
            self.stack.enter_context(self.watching)

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 11:  # before what an epoch's end reads
            self.stack.close()


@pytest.mark.parametrize("strategy", ["mirrored_2", "central_storage_2"], indirect=True)
def test_fit_settles(strategy, monkeypatch):
    watch = Watch(nothing_fetched(monkeypatch))
    net(strategy).fit(X, Y, batch_size=4, verbose=0, callbacks=[watch])
    assert watch.batches == 12

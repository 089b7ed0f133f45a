"""The callback that stops `fit` at the first NaN."""

import keras
import numpy as np
import pytest

import replicax as rx

X, Y = np.ones((12, 2), "float32"), np.ones((12, 1), "float32")


def net(rate=0.1):
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(3, name="first"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


class Poison(keras.callbacks.Callback):
    """Put NaN into the second layer's weights after a batch."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.after:
            self.model.jax_state_sync()
            self.model.layers[1].kernel.assign(np.full((3, 1), np.nan))


class Count(keras.callbacks.Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1


def test_a_good_fit_is_left_alone():
    history = net().fit(X, Y, batch_size=4, verbose=0, callbacks=[rx.callbacks.AssertFinite()])
    assert len(history.history["loss"]) == 1


@pytest.mark.parametrize("owned", [False, True])
def test_the_first_bad_variable_and_the_batch_are_named(mirrored, owned):
    if owned:
        with mirrored.scope():
            model = net()
    else:
        model = net()
    callbacks = [Poison(after=0), rx.callbacks.AssertFinite()]
    with pytest.raises(rx.errors.NonFinite, match="NaN or infinite") as caught:
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=callbacks)
    # Poisoned after batch 0, the step of batch 1 spreads it.
    assert "at batch 1;" in str(caught.value)
    assert f"the first bad variable is '{model.layers[0].kernel.path}'" in str(caught.value)


def test_bad_targets_stop_at_their_batch():
    bad = np.where(np.arange(12)[:, None] == 5, np.nan, 1.0).astype("float32")
    callbacks = [rx.callbacks.AssertFinite()]
    with pytest.raises(rx.errors.NonFinite, match="at batch 1;"):
        net().fit(X, bad, batch_size=4, verbose=0, shuffle=False, callbacks=callbacks)


@pytest.mark.parametrize(("every", "batch"), [(1, 0), (2, 1), (3, 2)])
def test_the_loss_is_looked_at_every_so_often(every, batch):
    model, count = net(), Count()
    bad = np.full_like(Y, np.nan)
    callbacks = [count, rx.callbacks.AssertFinite(every=every)]
    with pytest.raises(rx.errors.NonFinite, match=f"at batch {batch};"):
        model.fit(X, bad, batch_size=4, verbose=0, callbacks=callbacks)
    assert count.batches == batch + 1


@pytest.mark.parametrize("every", [0, -1])
def test_the_number_of_batches_must_be_positive(every):
    with pytest.raises(rx.errors.UsageError, match="`every`"):
        rx.callbacks.AssertFinite(every=every)


@pytest.mark.parametrize("logs", [None, {}, {"accuracy": float("nan")}])
def test_without_a_loss_there_is_nothing_to_look_at(logs):
    rx.callbacks.AssertFinite().on_train_batch_end(0, logs)

"""Layers and optimizers that could see how a batch was split: `fit` equals one device.

The reference is plain Keras on one device, without a strategy.
"""

import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax
from keras import layers

from replicax._core.errors import UsageError
from replicax.testing import MATRIX

from fitting import SAMPLE, made, weight_difference

SEQUENCES = SAMPLE.normal(size=(22, 6, 5)).astype("float32")
TARGETS = SAMPLE.normal(size=(22, 1)).astype("float32")


def model_of(make_layers, optimizer="sgd"):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6, 5)), *make_layers()])
    model.compile(optimizer, "mse")
    return model


def dense():
    return [layers.Flatten(), layers.Dense(4, activation="tanh"), layers.Dense(1)]


class Penalty(layers.Layer):
    """A loss that sees the whole batch: padding would change it."""

    def call(self, x):
        self.add_loss(keras.ops.mean(x**2))
        return x


def sorted_and_shifted(x):
    """Its gradient scatters into each row: XLA ended the process if rows were uneven."""
    places = jnp.argmax(x, -1).astype("uint8")
    shifted = jax.vmap(lambda row, place: lax.dynamic_update_slice(row, row[:2], [place]))
    return keras.ops.sort(x, -1) + keras.ops.median(x, 0) + shifted(x, places)


LAYERS = {
    "sort": lambda: [
        layers.Flatten(),
        layers.Dense(6),
        layers.Lambda(sorted_and_shifted),
        layers.Dense(1),
    ],
    "activity_regularizer_and_add_loss": lambda: [
        layers.Flatten(),
        layers.Dense(6, kernel_regularizer=keras.regularizers.L2(0.01)),
        Penalty(),
        layers.Dense(1, activity_regularizer=keras.regularizers.L2(0.01)),
    ],
    "bidirectional_gru_with_dropout": lambda: [
        layers.Bidirectional(layers.GRU(4, recurrent_dropout=0.2, dropout=0.2)),
        layers.Dense(1),
    ],
    "spectral_normalization": lambda: [
        layers.Flatten(),
        layers.SpectralNormalization(layers.Dense(4)),
        layers.Dense(1),
    ],
    "group_normalization_and_noise": lambda: [
        layers.GroupNormalization(5),
        layers.GaussianNoise(0.1),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1),
    ],
    "frozen_batch_norm": lambda: [
        layers.BatchNormalization(trainable=False),
        layers.Flatten(),
        layers.Dense(1),
    ],
    "augmentation_and_transposed_convolution": lambda: [
        layers.Reshape((6, 5, 1)),
        layers.RandomFlip(seed=1),
        layers.Conv2DTranspose(2, 3, strides=2),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(1),
    ],
}


def fit(model, x=SEQUENCES):
    return model.fit(x, TARGETS, batch_size=8, epochs=2, verbose=0, shuffle=False).history["loss"]


def compare(name, make, train=fit, tolerance=1e-5):
    runs = []
    for strategy in (None, MATRIX[name]()):
        model = made(strategy, make)
        keras.utils.set_random_seed(4)
        runs.append((train(model), model.get_weights()))
    (expected_losses, expected), (losses, weights) = runs
    np.testing.assert_allclose(losses, expected_losses, rtol=10 * tolerance, atol=1e-6)
    assert weight_difference(weights, expected) <= tolerance


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, "mirrored_3") for kind in LAYERS), ("frozen_batch_norm", "central_storage_2")],
)
def test_layer(kind, name):
    compare(name, functools.partial(model_of, LAYERS[kind]))


def masked_lstm():
    keras.utils.set_random_seed(8)
    embedding = layers.Embedding(50, 6, mask_zero=True)
    model = keras.Sequential(
        [keras.Input((7,), dtype="int32"), embedding, layers.LSTM(5), layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return model


def test_lstm_and_masked_embedding():
    tokens = SAMPLE.integers(0, 50, (22, 7))
    compare("mirrored_2", masked_lstm, lambda model: fit(model, tokens))


def attention():
    keras.utils.set_random_seed(9)
    inputs = keras.Input((6, 5))
    h = layers.MultiHeadAttention(2, 4, dropout=0.1)(inputs, inputs)
    h = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(inputs + h))
    model = keras.Model(inputs, layers.Dense(1)(h))
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def test_attention_and_layer_norm():
    compare("mirrored_3", attention)


@pytest.mark.parametrize("kind", ["adamw", "lion", "muon", "adafactor", "nadam", "rmsprop"])
def test_optimizer(kind):
    # Adaptive optimizers divide by small numbers: 1e-4, as for Adam.
    compare("mirrored_3", functools.partial(model_of, dense, kind), tolerance=1e-4)


def freeze_and_go_on(model):
    losses = fit(model)
    model.layers[1].trainable = False
    model.compile("sgd", "mse")
    losses += fit(model)
    model.set_weights([weight * 0.5 for weight in model.get_weights()])
    losses += fit(model)
    model.compile("adam", "mse", metrics=["mae"])
    return losses + fit(model)


@pytest.mark.parametrize("name", ["mirrored_3", "central_storage_2"])
def test_layers_frozen_weights_set_and_compiled_again(name):
    compare(name, functools.partial(model_of, dense), freeze_and_go_on, tolerance=1e-4)


def fit_pieces(model):
    """A generator whose batches have 3, 8, 1, 7 and 3 rows."""
    bounds = [0, 3, 11, 12, 19, 22]
    batches = ((SEQUENCES[a:b], TARGETS[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True))
    return model.fit(batches, steps_per_epoch=5, verbose=0, shuffle=False).history["loss"]


@pytest.mark.parametrize(
    "train",
    [
        fit_pieces,
        lambda model: fit(model, (SEQUENCES * 20 + 100).astype("uint8")),
        lambda model: fit(model, jnp.asarray(SEQUENCES)),
    ],
    ids=["ragged_generator", "uint8", "jax_arrays"],
)
def test_input(train):
    scaled = functools.partial(model_of, lambda: [layers.Rescaling(1 / 255.0), *dense()])
    compare("mirrored_3", scaled, train)


def test_a_programs_own_shard_map_may_sort(mirrored):
    """XLA divides nothing inside of it; uneven rows stay an error of JAX."""
    mesh = mirrored.extended.distribution.topology.mesh
    rows = jax.sharding.PartitionSpec(mesh.axis_names)
    each = jax.shard_map(lambda x: jnp.sort(x, -1), mesh=mesh, in_specs=(rows,), out_specs=rows)

    def by_rows(sort):
        return lambda: [layers.Flatten(), layers.Dense(6), layers.Lambda(sort), layers.Dense(1)]

    def losses(model):
        how = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        return model.fit(SEQUENCES[:16], TARGETS[:16], **how).history["loss"]

    ours = made(mirrored, functools.partial(model_of, by_rows(each)))
    plain = model_of(by_rows(lambda x: jnp.sort(x, -1)))
    np.testing.assert_allclose(losses(ours), losses(plain), rtol=1e-5)


def test_a_variable_that_was_given_another_ones_value_keeps_it(mirrored):
    """A target network: both variables hold one array, which training must not reuse."""
    model = made(mirrored, functools.partial(model_of, dense))
    target = made(mirrored, functools.partial(model_of, dense))
    fit(model)
    for ours, theirs in zip(target.variables, model.variables, strict=True):
        ours.assign(theirs)
    expected, held = model.get_weights(), [v.value for v in model.variables]
    fit(model)
    model.evaluate(SEQUENCES, TARGETS, verbose=0)
    assert target.predict(SEQUENCES, verbose=0).shape == (22, 1)
    for weight, value, array in zip(target.get_weights(), expected, held, strict=True):
        np.testing.assert_array_equal(weight, value)
        np.testing.assert_array_equal(np.asarray(array), value)


class TakesSnapshots(keras.callbacks.Callback):
    """Looks at the weights after every batch, and keeps them."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def on_train_batch_end(self, batch, logs=None):
        self.model.jax_state_sync()
        self.taken.append(self.model.trainable_variables[0].value)


def test_weights_that_a_callback_kept_stay_readable(mirrored):
    model, callback = made(mirrored, functools.partial(model_of, dense)), TakesSnapshots()
    model.fit(SEQUENCES, TARGETS, batch_size=8, epochs=2, verbose=0, callbacks=[callback])
    assert all(np.isfinite(np.asarray(value)).all() for value in callback.taken)


def frozen_between_predictions(model):
    first = model.predict(SEQUENCES, verbose=0)
    model.layers[1].trainable = False
    second = model.predict(SEQUENCES, verbose=0)
    model.trainable = False
    return [*first.ravel(), *second.ravel(), *model.predict(SEQUENCES, verbose=0).ravel()]


def low_rank_after_training(model):
    losses = fit(model)
    model.layers[1].enable_lora(2)
    model.compile("sgd", "mse")
    losses += fit(model)
    return [*losses, *model.predict(SEQUENCES, verbose=0).ravel()]


@pytest.mark.parametrize("train", [frozen_between_predictions, low_rank_after_training])
@pytest.mark.parametrize("name", ["mirrored_3", "central_storage_2"])
def test_variables_may_change_between_calls(name, train):
    compare(name, functools.partial(model_of, dense), train)


def frozen(layer):
    layer.trainable = False


def thawed_for_another(model):
    model.layers[1].trainable = False
    model.compile("sgd", "mse")
    fit(model)
    model.layers[1].trainable, model.layers[2].trainable = True, False


@pytest.mark.parametrize(
    "change",
    [lambda model: frozen(model.layers[1]), frozen, thawed_for_another],
    ids=["one", "all", "another"],
)
@pytest.mark.parametrize("name", ["mirrored_3", "central_storage_2"])
def test_a_change_of_what_is_trainable_asks_for_another_compile(name, change, monkeypatch):
    monkeypatch.setattr("replicax._core.seams.speaks_tensorflow", False)
    model = made(MATRIX[name](), functools.partial(model_of, dense))
    fit(model)
    change(model)
    before = model.get_weights()
    with pytest.raises(UsageError, match="model.compile"):
        fit(model)
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    model.compile("sgd", "mse")
    fit(model)

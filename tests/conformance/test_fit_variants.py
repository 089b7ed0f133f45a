"""What people do with `fit`: each variant gives one device's result.

The reference is plain Keras on one device, without a strategy.
"""

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.testing import MATRIX

from fitting import ROWS, TARGETS, dense_net, made, weight_difference


def by_layers(weights):
    """Kernel and bias as one array. A bias near zero has mostly the rounding noise of 16 bits."""
    pairs = zip(weights[::2], weights[1::2], strict=True)
    return [np.concatenate([kernel.ravel(), bias]) for kernel, bias in pairs]


def compare_dense(name, compile_args, fit_args, tolerance=1e-5, reference=None):
    """Run the same `compile` and `fit` with a strategy and by a reference or none, and compare."""
    runs = []
    for strategy in (reference and MATRIX[reference](), MATRIX[name]()):
        model = made(strategy, lambda: dense_net(**compile_args()))
        keras.utils.set_random_seed(2)
        history = model.fit(**fit_args(), verbose=0).history
        runs.append((model.get_weights(), history))
    (expected, expected_history), (weights, history) = runs
    if keras.config.dtype_policy().name != "float32":
        weights, expected = by_layers(weights), by_layers(expected)
    assert weight_difference(weights, expected) <= tolerance
    for key, values in expected_history.items():
        np.testing.assert_allclose(history[key], values, rtol=10 * tolerance, atol=1e-6)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(index * 10, (index + 1) * 10)
        return ROWS[rows], TARGETS[rows]


def arrays(**more):
    return lambda: {"x": ROWS, "y": TARGETS, "batch_size": 10, "epochs": 2} | more


def optimizer(make):
    return lambda: {"optimizer": make()}


def generator_args():
    batches = ((ROWS[i : i + 9], TARGETS[i : i + 9]) for i in (0, 9, 18, 0, 9))
    return {"x": batches, "steps_per_epoch": 2, "epochs": 2, "shuffle": False}


def decaying():
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))


def averaging():
    return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2)


def summed_loss():
    loss = keras.losses.MeanSquaredError(reduction="sum")
    return {"loss": loss, "optimizer": keras.optimizers.SGD(0.01)}


def binary_loss():
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return {"loss": loss, "metrics": ["accuracy"]}


def more_metrics():
    return {"metrics": [keras.metrics.R2Score(), keras.metrics.RootMeanSquaredError()]}


VARIANTS = {
    "jit_compile_off": (lambda: {"jit_compile": False}, arrays()),
    "run_eagerly": (lambda: {"run_eagerly": True}, arrays()),
    "gradient_accumulation": (
        optimizer(lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)),
        arrays(),
    ),
    "ema": (optimizer(averaging), arrays()),
    "global_clipnorm": (
        optimizer(lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.1)),
        arrays(),
    ),
    "learning_rate_schedule": (optimizer(decaying), arrays()),
    "sample_weight": (dict, arrays(sample_weight=np.linspace(0, 2, 27).astype("float32"))),
    "validation_split": (lambda: {"metrics": ["mae"]}, arrays(validation_split=0.3)),
    "validation_data": (
        lambda: {"weighted_metrics": ["mae"]},
        arrays(validation_data=(ROWS[:5], TARGETS[:5]), validation_freq=2),
    ),
    "py_dataset": (dict, lambda: {"x": Batches(), "epochs": 2}),
    "generator": (dict, generator_args),
    "reduction_sum": (summed_loss, arrays()),
    "metrics": (more_metrics, arrays()),
    "class_weight": (
        binary_loss,
        arrays(y=(TARGETS > 0).astype("float32"), class_weight={0: 1.0, 1: 3.0}),
    ),
}


ELSEWHERE = ("run_eagerly", "ema", "sample_weight", "validation_data")


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        *((variant, "mirrored_2") for variant in VARIANTS),
        *((variant, "central_storage_3") for variant in ELSEWHERE),
    ],
)
def test_variant_equals_one_device(variant, name):
    compare_dense(name, *VARIANTS[variant])


@pytest.mark.parametrize("name", ["mirrored_2", "central_storage_3"])
def test_small_batches_add_up_to_a_large_one(name):
    """Two updates of 12 rows at once, and each of three times 4 rows, which differ in loss."""

    def weights(batch_size, parts):
        optimizer = keras.optimizers.Adam(0.05, gradient_accumulation_steps=parts)
        model = made(MATRIX[name](), lambda: dense_net(optimizer=optimizer))
        model.fit(ROWS[:24], TARGETS[:24], batch_size=batch_size, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == 2
        return model.get_weights()

    assert weight_difference(weights(4, 3), weights(12, None)) <= 1e-6


@pytest.mark.parametrize("name", ["one_device", "mirrored_2", "central_storage_3"])
def test_fit_takes_distributed_datasets(name):
    strategy = MATRIX[name]()
    batches = [(ROWS[i : i + 10], TARGETS[i : i + 10]) for i in (0, 10, 20)]
    dataset = strategy.experimental_distribute_dataset(batches)
    distributed, expected = made(strategy, dense_net), dense_net()
    distributed.fit(dataset, epochs=2, verbose=0, validation_data=dataset)
    expected.fit(ROWS, TARGETS, batch_size=10, epochs=2, verbose=0, shuffle=False)
    assert weight_difference(distributed.get_weights(), expected.get_weights()) <= 1e-5
    loss = expected.evaluate(ROWS, TARGETS, batch_size=10, verbose=0)
    np.testing.assert_allclose(distributed.evaluate(dataset, verbose=0), loss, rtol=1e-5)
    assert distributed.predict(dataset, verbose=0).shape == (27, 1)


# Without a strategy XLA rounds `bfloat16` after each operation: 0.019 from `float32` here.
@pytest.mark.parametrize(
    ("policy", "reference"), [("mixed_bfloat16", "one_device"), ("mixed_float16", None)]
)
def test_mixed_precision_equals_one_device(policy, reference):
    keras.config.set_dtype_policy(policy)
    try:
        # Sums of half-precision numbers in another order: their own accuracy is 4e-3, and six
        # small steps change the weights.
        compare_dense(
            "mirrored_2",
            optimizer(lambda: keras.optimizers.SGD(0.05)),
            arrays(),
            tolerance=2e-3,
            reference=reference,
        )
    finally:
        keras.config.set_dtype_policy("float32")


class OwnStep(keras.Model):
    """A subclassed, unbuilt model with a custom `train_step` in Keras' JAX form."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return {**logs, "twice": 2 * logs["loss"]}, state


def test_subclassed_model_with_custom_train_step(mirrored):
    losses = []
    for strategy in (None, mirrored):
        keras.utils.set_random_seed(4)
        model = made(strategy, OwnStep)
        model.compile("sgd", "mse")
        history = model.fit(ROWS, TARGETS, batch_size=10, epochs=2, verbose=0, shuffle=False)
        losses.append(history.history)
    np.testing.assert_allclose(losses[1]["twice"], losses[0]["twice"], rtol=1e-5)
    np.testing.assert_allclose(losses[1]["loss"], losses[0]["loss"], rtol=1e-5)


def two_inputs_two_outputs():
    keras.utils.set_random_seed(6)
    a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    joined = keras.layers.Concatenate()([a, b])
    first = keras.layers.Dense(1, name="first")(joined)
    second = keras.layers.Dense(2, name="second")(joined)
    model = keras.Model({"a": a, "b": b}, {"first": first, "second": second})
    losses = {"first": "mse", "second": "mse"}
    model.compile("sgd", losses, loss_weights={"first": 2.0, "second": 0.5})
    return model


def test_several_inputs_and_outputs(mirrored):
    x = {"a": ROWS, "b": ROWS[:, :2]}
    y = {"first": TARGETS, "second": ROWS[:, 2:]}
    results = []
    for strategy in (None, mirrored):
        model = made(strategy, two_inputs_two_outputs)
        model.fit(x, y, batch_size=10, epochs=2, verbose=0, shuffle=False)
        results.append((model.get_weights(), model.predict(x, batch_size=8, verbose=0)))
    assert weight_difference(results[1][0], results[0][0]) <= 1e-5
    np.testing.assert_allclose(results[1][1]["second"], results[0][1]["second"], atol=1e-5)


class Interrupt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


def test_callbacks_write_and_resume(mirrored, tmp_path):
    """BackupAndRestore, ModelCheckpoint and EarlyStopping work as in Keras."""

    def fit(model, folder, *more):
        folder.mkdir(exist_ok=True)
        callbacks = [
            *more,
            keras.callbacks.BackupAndRestore(folder / "backup"),
            keras.callbacks.ModelCheckpoint(folder / "best.keras", monitor="loss"),
            keras.callbacks.EarlyStopping("loss", patience=5, restore_best_weights=True),
        ]
        args = {"batch_size": 10, "epochs": 4, "verbose": 0, "shuffle": False}
        model.fit(ROWS, TARGETS, callbacks=callbacks, **args)

    uninterrupted = made(mirrored, dense_net)
    fit(uninterrupted, tmp_path / "whole")
    interrupted, resumed = made(mirrored, dense_net), made(mirrored, dense_net)
    with pytest.raises(KeyboardInterrupt):
        fit(interrupted, tmp_path / "cut", Interrupt())
    fit(resumed, tmp_path / "cut")
    assert weight_difference(resumed.get_weights(), uninterrupted.get_weights()) <= 1e-6
    assert (tmp_path / "cut" / "best.keras").exists()


# Several steps as one program. With parameter servers: tests/ps/test_fit.py.

TWO = ["CPU:0", "CPU:1"]
WAYS = {
    "one device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored": lambda: rx.MirroredStrategy(TWO),
    "mirrored, slots divided": lambda: rx.MirroredStrategy(TWO, shard_optimizer=True),
    "mirrored, all divided": lambda: rx.MirroredStrategy(TWO, shard_parameters=True),
    "mirrored, compressed": lambda: rx.MirroredStrategy(TWO, compression="int8"),
    "central storage": lambda: rx.CentralStorageStrategy(TWO),
    "model parallel": lambda: rx.ModelParallelStrategy(model_parallel=2, devices=TWO),
    "workers": rx.MultiWorkerMirroredStrategy,
    "steps alone": lambda: rx.MultiWorkerMirroredStrategy(sync_every=2),
}


def trained(strategy, steps):
    """Weights and losses after two epochs of seven batches, the last of three rows."""
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    how = {"optimizer": optimizer, "steps_per_execution": steps, "metrics": ["mae"]}
    model = made(strategy, lambda: dense_net(**how))
    fit = model.fit(ROWS, TARGETS, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), fit.history


@pytest.mark.parametrize("way", WAYS)
def test_several_steps_at_once_come_to_what_one_by_one_comes_to(way):
    strategy = WAYS[way]()
    weights, history = trained(strategy, 1)
    found, losses = trained(strategy, 4)
    # Rounding: XLA compiles a loop of steps by itself.
    assert weight_difference(found, weights) <= 1e-6
    for name, values in history.items():
        np.testing.assert_allclose(losses[name], values, rtol=1e-6)

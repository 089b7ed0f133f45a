"""Variables that are divided over devices: the results are one device's, the shares as planned."""

import functools

import jax
import keras
import numpy as np
import pytest

import replicax as rx

from fitting import made, weight_difference

CPUS = [f"CPU:{i}" for i in range(4)]
DIVIDED = {
    "zero1": lambda: rx.MirroredStrategy(CPUS[:2], shard_optimizer=True),
    "zero3": lambda: rx.MirroredStrategy(CPUS, shard_parameters=True),
    "model": lambda: rx.ModelParallelStrategy(
        {
            ".*first/kernel": (None, "model"),
            ".*first/bias": ("model",),
            ".*second/kernel": ("model",),
        },
        model_parallel=2,
        devices=CPUS,
        shard_optimizer=True,
    ),
}
# Of 32 · 64 + 64 and 64 · 64 + 64 and 64 + 1 elements, per device: the model's, and one of the
# optimizer's two slots. The kernels have 2048 and 4096 elements; all else is too small for ZeRO.
SMALL = 64 + 64 + 64 + 1
PLANNED = {
    "zero1": (2048 + 4096 + SMALL, 1024 + 2048 + SMALL),
    "zero3": (512 + 1024 + SMALL, 512 + 1024 + SMALL),
    "model": (1024 + 2048 + SMALL - 32, 512 + 1024 + SMALL - 32),  # and half of a bias
}
SAMPLE = np.random.default_rng(5)
X = SAMPLE.normal(size=(37, 32)).astype("float32")
Y = SAMPLE.normal(size=(37, 1)).astype("float32")

every_way = pytest.mark.parametrize("name", DIVIDED)


def net():
    keras.utils.set_random_seed(4)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(64, activation="tanh", name="first"),
            layers.Dropout(0.2),
            layers.Dense(64, activation="tanh", name="second"),
            layers.Dense(1, name="third"),
        ]
    )


def sgd():
    """With two slots, and without Adam's division by what is nearly nothing."""
    return keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.9)


def compiled():
    model = net()
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


def on_device(variables):
    """How many elements of these variables the first device holds."""
    return sum(v.value.addressable_shards[0].data.size for v in variables if v.ndim)


def fitted(strategy):
    model = made(strategy, compiled)
    keras.utils.set_random_seed(11)
    history = model.fit(X, Y, batch_size=16, epochs=3, verbose=0)
    return model, {
        **history.history,
        "evaluate": model.evaluate(X, Y, batch_size=7, verbose=0),
        "predict": model.predict(X, batch_size=10, verbose=0),
    }


@functools.cache
def fitted_on_one_device():
    model, results = fitted(None)
    return model.get_weights(), results


@every_way
def test_fit_gives_the_result_of_one_device_and_divides_memory(name):
    weights, expected = fitted_on_one_device()
    model, results = fitted(DIVIDED[name]())
    assert weight_difference(model.get_weights(), weights) <= 1e-5
    for key, value in expected.items():
        np.testing.assert_allclose(results[key], value, rtol=1e-4, atol=1e-5)
    of_model, of_a_slot = PLANNED[name]
    assert on_device(model.trainable_variables) == of_model
    assert on_device(model.optimizer.variables) == 2 * of_a_slot
    assert keras.distribution.distribution() is None


def looped(strategy, *, as_function):
    """A custom loop over batches of 16, 16 and 5 rows; the slots are made in `run`."""
    with strategy.scope():
        model = net()
        optimizer, seen = sgd(), keras.metrics.Sum()

    def replica_step(x, y):
        def compute_loss():
            return keras.ops.sum(keras.ops.square(model(x) - y)) / 16

        loss, gradients = rx.value_and_grad(compute_loss, model)()
        optimizer.apply(gradients, model.trainable_variables)
        seen.update_state(keras.ops.ones(len(x)))
        return loss, model(x)

    def step(batch):
        losses, predicted = strategy.run(replica_step, args=batch)
        return strategy.reduce("SUM", losses, axis=None), strategy.gather(predicted, axis=0)

    step = rx.function(step) if as_function else step
    batches = [(X[i : i + 16], Y[i : i + 16]) for i in (0, 16, 32)] * 2
    results = [step(batch) for batch in strategy.experimental_distribute_dataset(batches)]
    assert float(seen.result()) == 74
    return model, optimizer, [(float(loss), np.asarray(out)) for loss, out in results]


@functools.cache
def looped_on_one_device():
    model, _, results = looped(rx.OneDeviceStrategy("CPU:0"), as_function=False)
    return model.get_weights(), results


@pytest.mark.parametrize(
    ("name", "as_function"),
    [("zero1", False), ("zero3", False), ("zero3", True), ("model", False), ("model", True)],
)
def test_a_custom_loop_gives_the_result_of_one_device(name, as_function):
    weights, expected = looped_on_one_device()
    model, optimizer, results = looped(DIVIDED[name](), as_function=as_function)
    assert weight_difference(model.get_weights(), weights) <= 1e-5
    for (loss, predicted), (other, others) in zip(results, expected, strict=True):
        assert loss == pytest.approx(other, rel=1e-5)
        np.testing.assert_allclose(predicted, others, rtol=1e-4, atol=1e-5)
    assert on_device(optimizer.variables) == 2 * PLANNED[name][1]


def test_replicas_of_several_devices_draw_numbers_of_their_own():
    strategy = rx.ModelParallelStrategy(model_parallel=2, devices=CPUS)
    with strategy.scope():
        drop = keras.layers.Dropout(0.5)
    ones = np.ones((2, 256), "float32")
    (batch,) = strategy.experimental_distribute_dataset([ones])
    first, second = strategy.run(lambda x: drop(x, training=True), args=(batch,)).values
    assert set(np.unique(first)) == set(np.unique(second)) == {0.0, 2.0}
    assert not np.array_equal(first, second)


def test_a_value_that_the_user_holds_survives_a_step_of_divided_variables():
    strategy = DIVIDED["zero3"]()
    with strategy.scope():
        table = keras.Variable(jax.numpy.ones((64, 32)))
    held = table.value
    for _ in range(2):
        strategy.run(lambda: table.assign_add(keras.ops.ones((64, 32))))
    assert float(held.sum()) == 64 * 32
    assert float(table.numpy().sum()) == 3 * 64 * 32
    assert table.value.sharding.spec[0] == "replica"


@pytest.mark.parametrize("name", ["zero3", "model"])
def test_files_hold_the_whole_of_divided_variables(name, tmp_path):
    model, _ = fitted(DIVIDED[name]())
    model.save(tmp_path / "model.keras")
    weights = model.get_weights()
    slots = [v.numpy() for v in model.optimizer.variables]
    for strategy in (None, DIVIDED[name]()):
        load = functools.partial(keras.models.load_model, tmp_path / "model.keras")
        loaded = made(strategy, load)
        for before, after in zip(weights, loaded.get_weights(), strict=True):
            np.testing.assert_array_equal(after, before)
        for before, after in zip(slots, loaded.optimizer.variables, strict=True):
            np.testing.assert_array_equal(after.numpy(), before)
    assert on_device(loaded.trainable_variables) == PLANNED[name][0]
    assert on_device(loaded.optimizer.variables) == 2 * PLANNED[name][1]


def test_checkpoints_and_backups_hold_the_whole_of_divided_variables(tmp_path):
    model, _ = fitted(DIVIDED["zero3"]())
    weights = model.get_weights()
    checkpoint = rx.train.Checkpoint(model=model)
    path = checkpoint.save(str(tmp_path / "saved"))
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    model.fit(X, Y, batch_size=16, verbose=0, callbacks=[backup])
    assert weight_difference(model.get_weights(), weights) > 1e-4
    checkpoint.restore(path)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(after, before)
    assert on_device(model.trainable_variables) == PLANNED["zero3"][0]


def test_steps_that_are_not_compiled_leave_variables_divided():
    model = made(DIVIDED["zero3"](), compiled)
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(X[:8], Y[:8], verbose=0)
    assert on_device(model.trainable_variables) == PLANNED["zero3"][0]

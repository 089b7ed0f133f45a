"""`rx.find_batch_size`: the answer fits by the plan, and the model is as it was."""

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.testing import MATRIX

CPUS = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]


def mlp(kind=keras.Sequential):
    layers = [keras.Input((64,)), keras.layers.Dense(128), keras.layers.Dropout(0.5)]
    model = kind([*layers, keras.layers.Dense(8)], name="mlp")
    model.compile("adam", "mse", metrics=["mae"])
    return model


def made_in(strategy, kind=keras.Sequential):
    with strategy.scope():
        return mlp(kind)


def planned(rows, name="mirrored", devices=2):
    (row,) = rx.plan(mlp(), topologies=[f"cpu:{devices}"], strategies=[name], batch_size=rows).rows
    return row.memory.total


@pytest.mark.parametrize(
    ("of", "name", "devices"),
    [
        (MATRIX["one_device"], "one_device", 1),
        (MATRIX["mirrored_2"], "mirrored", 2),
        (lambda: rx.MirroredStrategy(shard_parameters=True), "zero3", 8),
        (lambda: rx.ModelParallelStrategy(model_parallel=2, devices=CPUS), "model_parallel:2", 4),
    ],
)
def test_the_answer_fits_by_the_plan_and_a_larger_batch_does_not(of, name, devices):
    model, memory = made_in(of()), planned(600, name, devices)
    found = rx.find_batch_size(model, memory=memory)
    replicas = 2 if name == "model_parallel:2" else devices
    assert found % replicas == 0
    assert 600 * 15 // 16 - replicas <= found <= 600
    assert planned(2 * found, name, devices) > memory


def test_central_storage_keeps_the_old_values_beside_the_new_ones():
    # On devices that share memory with the parameters', a step writes new values elsewhere: three
    # times 64 x 128 + 128 x 8 numbers of 4 bytes, without the biases.
    model = made_in(rx.CentralStorageStrategy(CPUS[:3], CPUS[3]))
    memory = planned(600, "mirrored", 3) + 3 * 4 * (64 * 128 + 128 * 8)
    assert 600 * 15 // 16 - 12 <= rx.find_batch_size(model, memory=memory) <= 600


def test_a_step_that_calls_python_keeps_the_old_values_beside_the_new_ones():
    class Called(keras.layers.Layer):
        def call(self, x):
            kind = jax.ShapeDtypeStruct((), "float32")
            return x + jax.pure_callback(lambda: np.float32(0), kind)

    with rx.OneDeviceStrategy("CPU:0").scope():
        dense = keras.layers.Dense(4096, use_bias=False)
        model = keras.Sequential([keras.Input((64,)), Called(), dense])
        model.compile("sgd", "mse")
    # 64 x 4096 numbers of 4 bytes are 1 MiB, old and new.
    assert rx.find_batch_size(model, memory=5 * 2**19, max_batch_size=2) == 2
    with pytest.raises(rx.errors.UsageError, match="No batch"):
        rx.find_batch_size(model, memory=7 * 2**18, max_batch_size=2)


def test_nothing_of_a_model_changes(mirrored):
    model = made_in(mirrored)
    rows = np.ones((16, 64), "float32")
    model.fit(rows, rows[:, :8], batch_size=4, verbose=0)
    before = state(model)
    assert rx.find_batch_size(model, memory=planned(64), trial=True) > 8
    assert list(before) == list(after := state(model))
    for path, value in before.items():
        np.testing.assert_array_equal(value, after[path], err_msg=path)


def state(model):
    variables = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    assert any("seed" in one.path for one in variables)
    return {f"{i} {one.path}": np.asarray(one) for i, one in enumerate(variables)}


def test_a_batch_that_fails_in_a_trial_is_halved():
    tried = []

    class Large(keras.Sequential):
        def train_on_batch(self, x, *rest):
            tried.append(len(x))
            if len(x) > 40:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            return super().train_on_batch(x, *rest)

    model = made_in(rx.MirroredStrategy(["CPU:0", "CPU:1"]), Large)
    assert rx.find_batch_size(model, memory=10**9, max_batch_size=150, trial=True) == 36
    assert tried == [150, 74, 36]


def test_another_error_of_a_trial_is_told():
    class Broken(keras.Sequential):
        def train_on_batch(self, *batch):
            raise jax.errors.JaxRuntimeError("INTERNAL: broken")

    model = made_in(rx.OneDeviceStrategy("CPU:0"), Broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="broken"):
        rx.find_batch_size(model, memory=10**9, max_batch_size=4, trial=True)


def test_no_batch_fits():
    with pytest.raises(rx.errors.UsageError, match=r"'mlp' .* 8\.8 KiB .* variables"):
        rx.find_batch_size(made_in(rx.OneDeviceStrategy("CPU:0")), memory=9000)


def test_a_step_of_a_custom_loop_for_a_strategy(mirrored):
    weight = keras.Variable(np.ones((64, 64), "float32"))

    def step(x):
        weight.assign_sub(keras.ops.sum(weight) * weight)
        return keras.ops.tanh(keras.ops.matmul(x, weight))

    batch = (jax.ShapeDtypeStruct((10, 64), "float32"),)
    one = rx.find_batch_size(step, batch, memory=10**6)
    two = rx.find_batch_size(step, batch, strategy=mirrored, memory=10**6)
    # A row of 64 numbers comes and one goes, of 4 bytes; beside them are the weight and its update.
    assert 0.9 * 1_000_000 / 512 < one < 1_000_000 / 512
    assert 1.2 * one < two <= 2 * one
    assert two % 2 == 0


def test_a_trial_of_a_custom_step_leaves_its_variables():
    strategy, batch = rx.MirroredStrategy(["CPU:0", "CPU:1"]), (np.ones((4, 3), "float32"),)
    with strategy.scope():
        total = keras.Variable(5.0)

        def step(x):
            total.assign_add(1.0)
            return keras.ops.sum(x)

        assert rx.find_batch_size(step, batch, max_batch_size=9, trial=True) == 8
    assert float(total) == 5.0


def test_what_it_refuses():
    model = made_in(rx.MirroredStrategy(["CPU:0", "CPU:1"]))
    with pytest.raises(rx.errors.UsageError, match="max_batch_size.*at least 2"):
        rx.find_batch_size(model, max_batch_size=1)


def test_servers_hold_what_a_worker_does_not(monkeypatch):
    strategy = rx.OneDeviceStrategy("CPU:0")
    monkeypatch.setitem(strategy.extended.distribution.engine.__dict__, "closures", object())
    with pytest.raises(rx.errors.UsageError, match="ParameterServerStrategy"):
        rx.find_batch_size(mlp(), strategy=strategy)


def test_memory_is_a_number():
    with pytest.raises(rx.errors.UsageError, match="bytes"):
        rx.find_batch_size(made_in(rx.get_strategy()), memory="2GB")

"""`CentralStorageStrategy`: one copy of every variable, computation on all devices."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.placement import copy_array

CENTRAL = {"apart": (["CPU:1", "CPU:2", "CPU:3"], "CPU:5"), "shared": (["CPU:1", "CPU:2"], "CPU:1")}
X = np.random.default_rng(0).normal(size=(22, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def homes(strategy):
    with strategy.scope():
        variable = keras.Variable(np.ones(3, "float32"))
    before = [device.id for device in variable.value.devices()]
    strategy.run(lambda: variable.assign_add(np.ones(3, "float32")))
    assert [device.id for device in variable.value.devices()] == before
    assert variable.value.tolist() == [2.0, 2.0, 2.0]
    return before


@pytest.mark.parametrize(
    ("compute", "parameter", "home"),
    [
        (["CPU:1", "CPU:2"], "CPU:5", 5),
        (["CPU:1", "CPU:2"], None, 0),
        (["CPU:1", "CPU:2"], "CPU:2", 2),
        (["CPU:1", "CPU:2"], jax.devices()[3], 3),
        (["CPU:3"], None, 3),
        (["CPU:3"], "CPU:1", 1),
    ],
)
def test_variables_have_one_home(compute, parameter, home):
    assert homes(rx.CentralStorageStrategy(compute, parameter)) == [home]


def test_by_default_all_devices_compute():
    # Section 0: one CPU in tf.distribute.
    strategy = rx.CentralStorageStrategy()
    assert strategy.num_replicas_in_sync == 8
    assert strategy.extended.parameter_devices == ("CPU:0",)


def test_every_device_computes():
    strategy = rx.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:5")
    ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
    assert [part.devices() for part in ids.values] == [{jax.devices()[1]}, {jax.devices()[2]}]


@pytest.mark.parametrize("arguments", [(["GPU:0"],), (["CPU:0", "CPU:1"], "GPU:0")])
def test_devices_must_exist(arguments):
    with pytest.raises(rx.errors.UnknownDevice, match="here; JAX sees CPU:0-7"):
        rx.CentralStorageStrategy(*arguments)


def test_it_is_experimental_too():
    assert rx.experimental.CentralStorageStrategy is rx.CentralStorageStrategy


def a_model(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(3)
        first = keras.layers.Dense(5, use_bias=False)  # of a bias there the gradient is rounding
        layers = [first, keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    return model


def all_of(model):
    return [*model.variables, *model.optimizer.variables]


def everything(model):
    return [np.asarray(v.value) for v in all_of(model)]


@pytest.mark.parametrize("where", CENTRAL.values(), ids=CENTRAL)
def test_fit_gives_what_one_device_gives(where):
    # 22 rows in batches of 8: the last has 6, which three replicas divide and 8 they do not.
    found = []
    for strategy in (rx.CentralStorageStrategy(*where), rx.OneDeviceStrategy("CPU:0")):
        model = a_model(strategy)
        model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        found.append(everything(model))
        home = strategy.extended.parameter_devices
        assert {f"CPU:{d.id}" for v in all_of(model) for d in v.value.devices()} == {*home}
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-6)


def a_loop(strategy):
    """A weight and a momentum: w ← w − m, where m ← m / 2 + mean of x."""
    with strategy.scope():
        weight = keras.Variable([1.0, 2.0], aggregation="mean")
        momentum = keras.Variable([0.0, 0.0], aggregation="mean")

    def replica(x):
        gradient = rx.get_replica_context().all_reduce("mean", x * weight * 0 + x)
        momentum.assign(momentum / 2 + gradient)
        weight.assign(weight - momentum)

    return weight, momentum, rx.function(lambda x: strategy.run(replica, args=(x,)))


@pytest.fixture(params=["CPU:1", "CPU:5", "copies"])
def strategy(request, monkeypatch):
    """Variables on a compute device, on another, and as if that shared no memory with the first."""
    home = "CPU:5" if request.param == "copies" else request.param
    strategy = rx.CentralStorageStrategy(["CPU:1", "CPU:2"], home)
    if request.param == "copies":
        store = strategy.extended.distribution.store
        fetch = type(store).fetch
        monkeypatch.setattr(store, "fetches_copies", True)
        monkeypatch.setattr(store, "fetch", lambda values: [*map(copy_array, fetch(store, values))])
    return strategy


def test_values_that_somebody_holds_stay_as_they_were(strategy):
    weight, momentum, step = a_loop(strategy)
    x = np.ones(2, "float32")
    step(x)
    held, seen = momentum.value, np.asarray(weight.value)
    for _ in range(3):
        step(x)
    assert held.tolist() == [1.0, 1.0]
    assert seen.tolist() == [0.0, 1.0]
    assert momentum.value.tolist() == [1.875, 1.875]


def test_two_variables_never_share_memory(strategy):
    # A copy of a variable, as a target network is one.
    with strategy.scope():
        total, last = keras.Variable([0.0, 0.0]), keras.Variable([0.0, 0.0])
    copy = rx.function(lambda: last.assign(total))
    add = rx.function(lambda: total.assign(total + 1.0))
    for _ in range(3):
        copy()
        add()
    assert (total.value.tolist(), last.value.tolist()) == ([3.0, 3.0], [2.0, 2.0])


def failing_midway(strategy, monkeypatch):
    """Let new values not arrive where variables live."""

    def fail(self, values):
        raise MemoryError("no room at home")

    monkeypatch.setattr(type(strategy.extended.distribution.store), "put_back", fail)


def test_a_step_that_fails_midway_changes_no_variable(strategy, monkeypatch):
    weight, momentum, step = a_loop(strategy)
    x = np.ones(2, "float32")
    step(x)
    with monkeypatch.context() as patch:
        failing_midway(strategy, patch)
        with pytest.raises(MemoryError, match="no room at home"):
            step(x)
    assert (weight.value.tolist(), momentum.value.tolist()) == ([0.0, 1.0], [1.0, 1.0])
    step(x)
    assert (weight.value.tolist(), momentum.value.tolist()) == ([-1.5, -0.5], [1.5, 1.5])


def test_fit_that_fails_midway_leaves_the_model_as_it_was(strategy, monkeypatch):
    model = a_model(strategy)
    model.fit(X[:12], Y[:12], batch_size=6, verbose=0)
    before = everything(model)
    with monkeypatch.context() as patch:
        failing_midway(strategy, patch)
        with pytest.raises(MemoryError, match="no room at home"):
            model.fit(X[:12], Y[:12], batch_size=6, verbose=0)
    for now, then in zip(everything(model), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_python_function_that_raises_in_a_step_changes_no_variable(strategy):
    with strategy.scope():
        one, other = keras.Variable([1.0], aggregation="mean"), keras.Variable([1.0])

    days = ["not today"]

    def fail_once(value):
        if days:
            raise ValueError(days.pop())
        return value

    def replica(fails):
        added = jnp.ones(1)
        if fails:
            added = jax.pure_callback(fail_once, jax.ShapeDtypeStruct((1,), "float32"), added)
        one.assign_add(added)
        other.assign_add(jnp.ones(1))

    for _ in range(2):
        strategy.run(replica, args=(False,))
    with pytest.raises(ValueError, match="not today"):
        strategy.run(replica, args=(True,))
    assert (one.value.tolist(), other.value.tolist()) == ([3.0], [3.0])
    strategy.run(replica, args=(True,))
    assert (one.value.tolist(), other.value.tolist()) == ([4.0], [4.0])
    jax.effects_barrier()


def test_a_function_may_write_a_variable_of_no_scope(strategy):
    with strategy.scope():
        inside = keras.Variable(0.0, aggregation="mean")
    metric = keras.metrics.Mean()

    @rx.function
    def step(x):
        def replica(x):
            inside.assign_add(x)
            return x

        metric.update_state(strategy.reduce("MEAN", strategy.run(replica, args=(x,)), axis=None))

    for x in (0.0, 1.0, 5.0):
        step(jnp.float32(x))
    assert (float(metric.result()), float(inside.value)) == (2.0, 6.0)

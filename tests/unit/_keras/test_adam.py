"""Keras' Adam on CPUs: where it is one operation, and that it is the same optimizer everywhere."""

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._cpu import kernels
from replicax._fit.trainer import install_hooks
from replicax._keras import adam

from helpers import tuned

pytestmark = pytest.mark.skipif(not kernels.are_there(), reason="the kernels are not built")
install_hooks()

SHAPES = [(70, 60), (3,), (5, 4)]
RNG = np.random.default_rng(2)
VALUES = [RNG.normal(size=shape).astype("float32") for shape in SHAPES]
GRADS = [RNG.normal(size=shape).astype("float32") for shape in SHAPES]
Adam = keras.optimizers.Adam


def made(optimizer, dtype="float32", shapes=SHAPES):
    variables = [keras.Variable(np.resize(VALUES[0], shape), dtype=dtype) for shape in shapes]
    optimizer.build(variables)
    grads = [np.resize(GRADS[0], shape) for shape in shapes]
    return [[v.value for v in optimizer.variables], grads, [v.value for v in variables]]


def applied(optimizer, state, grads, values):
    for _ in range(3):
        values, state = optimizer.stateless_apply(state, grads, values)
    return values, state


def program(optimizer, given):
    # Not the optimizer's own function: JAX keeps what it has traced.
    return jax.make_jaxpr(lambda *x: optimizer.stateless_apply(*x))(*given)


def by_keras(make, given):
    with tuned(optimizers=False):
        return jax.jit(lambda *x: applied(make(), *x))(*given)


def close(ours, stock):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), ours, stock)


TOGETHER = {
    "plain": lambda: Adam(0.1),
    "other numbers": lambda: Adam(0.1, beta_1=0.7, beta_2=0.5, epsilon=1),
    "schedule": lambda: Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "clipped": lambda: Adam(0.1, global_clipnorm=0.5),
    "averaged": lambda: Adam(0.1, use_ema=True, ema_overwrite_frequency=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(Adam(0.1), initial_scale=4.0),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_it_is_one_operation_and_the_same_numbers(name):
    optimizer = TOGETHER[name]()
    given = made(optimizer)
    assert str(program(optimizer, given)).count("replicax_adam[") == 1
    with tuned(optimizers=False):
        assert "replicax_adam" not in str(program(optimizer, given))
        stock = jax.jit(lambda *x: applied(optimizer, *x))(*given)
    close(jax.jit(lambda *x: applied(optimizer, *x))(*given), stock)


class Halved(Adam):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate / 2)


class Other(Adam):
    def build(self, variables):
        keras.optimizers.Optimizer.build(self, variables)

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, learning_rate * gradient)


LEFT_TO_KERAS = {
    "amsgrad": lambda: made_by(Adam(amsgrad=True)),
    "decay": lambda: made_by(Adam(weight_decay=0.1)),
    "AdamW": lambda: made_by(keras.optimizers.AdamW()),
    "accumulated": lambda: made_by(Adam(gradient_accumulation_steps=2)),
    "another step": lambda: made_by(Halved()),
    "other variables": lambda: made_by(Other()),
    "Nadam": lambda: made_by(keras.optimizers.Nadam()),
    "bfloat16": lambda: made_by(Adam(), dtype="bfloat16"),
    "few elements": lambda: made_by(Adam(), shapes=[(60, 60), (7,)]),
}


def made_by(optimizer, **how):
    return optimizer, made(optimizer, **how)


@pytest.mark.parametrize("name", LEFT_TO_KERAS)
def test_what_is_left_to_keras(name):
    optimizer, given = LEFT_TO_KERAS[name]()
    assert "replicax_adam" not in str(program(optimizer, given))


def test_a_gradient_of_another_shape_is_what_keras_makes_of_it():
    optimizer = Adam(0.1)
    state, grads, values = made(optimizer)
    row = state, [grads[0][:1], *grads[1:]], values
    rows = state, [grads[0][:1].repeat(70, 0), *grads[1:]], values
    close(applied(optimizer, *row), applied(optimizer, *rows))
    with pytest.raises(TypeError, match="incompatible shapes"):
        optimizer.stateless_apply(state, [grads[0][:, :7], *grads[1:]], values)


def test_gradients_of_another_type():
    optimizer = Adam(0.1)
    state, grads, values = made(optimizer)
    given = state, [grad.astype("float16") for grad in grads], values
    assert "replicax_adam" in str(program(optimizer, given))
    exact = state, [np.float32(grad) for grad in given[1]], values
    close(applied(optimizer, *given), applied(optimizer, *exact))


def test_many_variables_are_updated_in_parts(monkeypatch):
    monkeypatch.setattr(adam, "_TOGETHER", 4210)
    optimizer = Adam(0.1)
    given = made(optimizer)
    assert str(program(optimizer, given)).count("replicax_adam[") == 2
    close(applied(optimizer, *given), by_keras(lambda: optimizer, given))


@pytest.fixture
def calls(monkeypatch):
    """The shapes of what the kernel is called for, in order."""
    found, own = [], jax.ffi.ffi_call

    def noted(target, results, **how):
        if target == kernels.ADAM:
            found.append([one.shape for one in results[: len(results) // 3]])
        return own(target, results, **how)

    monkeypatch.setattr(jax.ffi, "ffi_call", noted)
    return found


X = RNG.normal(size=(24, 40)).astype("float32")
Y = RNG.normal(size=(24, 2)).astype("float32")
NET = (40, 120), (120,), (120, 2), (2,)


def model():
    keras.utils.set_random_seed(4)
    layers = [keras.layers.Dense(120, activation="tanh"), keras.layers.Dense(2)]
    made = keras.Sequential([keras.Input((40,)), *layers])
    made.compile(Adam(0.01, epsilon=0.01), "mse")  # not so small that it makes much of rounding
    return made


def trained_by_fit(strategy, **how):
    with strategy.scope():
        net = model()
    net.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, **how)
    return [np.asarray(v) for v in (*net.weights, *net.optimizer.variables)]


def trained_by_loop(strategy):
    with strategy.scope():
        net = model()
        net.optimizer.build(net.trainable_variables)

    def step(x, y):
        with rx.GradientTape() as tape:
            loss = rx.nn.compute_average_loss(((net(x) - y) ** 2).mean(-1), global_batch_size=8)
        grads = tape.gradient(loss, net.trainable_variables)
        net.optimizer.apply_gradients(zip(grads, net.trainable_variables, strict=True))

    train = rx.function(lambda *batch: strategy.run(step, args=batch))
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 24, 8)] * 2
    for batch in strategy.experimental_distribute_dataset(batches):
        train(*batch)
    return [np.asarray(v) for v in (*net.weights, *net.optimizer.variables)]


TWO = ["CPU:0", "CPU:1"]
STRATEGIES = {
    "one": lambda: rx.OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: rx.MirroredStrategy(TWO),
    "central": lambda: rx.experimental.CentralStorageStrategy(TWO),
    "divided slots": lambda: rx.MirroredStrategy(TWO, shard_optimizer=True),
    "divided": lambda: rx.MirroredStrategy(TWO, shard_parameters=True),
}


@pytest.fixture(scope="module")
def stock():
    """After the same batches, by Keras' own formula on one device."""
    with tuned(optimizers=False):
        return trained_by_fit(STRATEGIES["one"]())


@pytest.mark.parametrize("trained", [trained_by_fit, trained_by_loop])
@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_train_alike(name, trained, stock, calls):
    close(trained(STRATEGIES[name]()), stock)
    # Who keeps a part of a slot updates no more than that.
    assert {tuple(shapes) for shapes in calls} == (set() if "divided" in name else {NET})


@pytest.mark.parametrize("kind", ["data", "model"])
def test_models_that_keras_itself_distributes_stay_with_keras(kind):
    devices = ["cpu:0", "cpu:1"]
    if kind == "data":
        chosen = keras.distribution.DataParallel(devices=devices)
    else:
        mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], devices)
        layouts = keras.distribution.LayoutMap(mesh)
        layouts["dense.*kernel"] = (None, "model")
        chosen = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    keras.utils.set_random_seed(1)
    rows = np.resize(VALUES[0], (4, 70))

    def trained():
        layer = keras.layers.Dense(60, kernel_initializer="ones", name="dense")
        model = keras.Sequential([keras.Input((70,)), layer])
        model.compile(Adam(0.1), "mse")
        model.fit(rows, np.zeros((4, 60), "float32"), batch_size=4, verbose=0)
        return model.get_weights()

    with chosen.scope():
        found = trained()
    close(found, trained())

"""Several steps as one program, and what a step of divided variables holds on a device.

That they train as one device does is in conformance/test_fit_variants.py and test_divided.py.
"""

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._fit.batches import placed
from replicax._fit.step_program import are_equal_shapes

from helpers import run_python

X = np.random.default_rng(0).normal(size=(40, 64)).astype("float32")
Y = X[:, :1]


def net(strategy, steps=1, **compile_args):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(1)]
        )
        model.compile("adam", "mse", steps_per_execution=steps, **compile_args)
    return model


def calls_of(steps):
    """How many batches each compiled call of a model's function gets, from now on."""
    counts, step = [], steps._step

    def counted(batches):
        counts.append(len(batches))
        return step(batches)

    steps._step = counted
    return counts


@pytest.mark.parametrize(
    ("rows", "executed"),
    [(24, [3]), (38, [3, 1, 1]), (23, [1, 1, 1])],
    ids=["whole", "two left, one of them uneven", "uneven among them"],
)
def test_a_full_number_of_equal_batches_is_one_program(mirrored, rows, executed):
    model = net(mirrored, steps=3)
    ends = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(batch))
    model.fit(X[:8], Y[:8], batch_size=8, verbose=0)
    counts = calls_of(model.train_function)
    model.fit(X[:rows], Y[:rows], batch_size=8, shuffle=False, verbose=0, callbacks=[note])
    assert counts == executed
    assert ends == [2, 5][: 1 + (rows > 24)]  # as Keras counts them, also at the end
    assert int(model.optimizer.iterations) == 1 + -(-rows // 8)


def test_predictions_of_several_steps_are_in_order(mirrored):
    one, several = net(mirrored), net(mirrored, steps=3)
    expected = one.predict(X[:37], batch_size=8, verbose=0)
    several.predict(X[:8], batch_size=8, verbose=0)
    counts = calls_of(several.predict_function)
    np.testing.assert_allclose(
        several.predict(X[:37], batch_size=8, verbose=0), expected, atol=1e-6
    )
    assert counts == [3, 1, 1]


def test_steps_that_are_not_compiled_run_one_by_one(mirrored):
    model = net(mirrored, steps=3, run_eagerly=True)
    model.fit(X[:24], Y[:24], batch_size=8, verbose=0)
    assert int(model.optimizer.iterations) == 3


def test_batches_are_alike_by_structure_shape_and_type():
    one = (np.ones((2, 3)), None)
    assert are_equal_shapes([one, (np.zeros((2, 3)), None)])
    assert not are_equal_shapes([one, (np.ones((1, 3)), None)])
    assert not are_equal_shapes([one, (np.ones((2, 3), "float32"), None)])
    assert not are_equal_shapes([one, (np.ones((2, 3)), np.ones(2))])


# The kernel of 64 · 64 = 4096 elements is divided, and so are Adam's two slots of it.
KERNEL = 64 * 64 * 4  # bytes


def bytes_of_step(strategy):
    """What the compiled train step takes and gives back on each device, in bytes."""
    model = net(strategy)
    model.fit(X[:8], Y[:8], batch_size=8, verbose=0)
    program = next(iter(model.train_function._programs.values()))
    batch = next(placed([(X[:8], Y[:8])], strategy.extended.distribution, ahead=0))
    memory = program.compiled.lower(*program.state.committed(), [batch]).compile().memory_analysis()
    return memory.argument_size_in_bytes, memory.output_size_in_bytes


def test_a_step_holds_a_share_of_what_is_divided():
    devices = [f"CPU:{i}" for i in range(4)]
    copied = bytes_of_step(rx.MirroredStrategy(devices))
    slots = bytes_of_step(rx.MirroredStrategy(devices, shard_optimizer=True))
    everything = bytes_of_step(rx.MirroredStrategy(devices, shard_parameters=True))
    # Three quarters of two slots; of two slots and the kernel.
    assert [a - b for a, b in zip(copied, slots, strict=True)] == [2 * KERNEL * 3 // 4] * 2
    assert [a - b for a, b in zip(copied, everything, strict=True)] == [3 * KERNEL * 3 // 4] * 2


@pytest.mark.parametrize("make", [rx.get_strategy, lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"])])
def test_the_second_step_compiles_nothing(make):
    compiled, after = [], []

    def hear(event, seconds, **_):
        compiled.extend([event] if event.endswith("/backend_compile_duration") else [])

    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: after.append(len(compiled))
    )
    model = net(make())
    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        model.fit(X[:24], Y[:24], batch_size=8, verbose=0, callbacks=[note])
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)
    assert after[0] > 0
    assert after[1:] == [after[0], after[0]]


def test_in_a_process_with_one_device_a_step_is_compiled_once():
    # There the values of new variables are not bound to it, and those of a step are.
    said = run_python(
        """
        import jax, keras, numpy as np, replicax as rx

        programs = []

        def heard(event, seconds, **about):
            if event == "/jax/core/compile/backend_compile_duration":
                programs.append(about.get("fun_name", ""))

        jax.monitoring.register_event_duration_secs_listener(heard)
        with rx.OneDeviceStrategy("CPU:0").scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        x = np.ones((16, 4), "float32")
        model.fit(x, x[:, :1], batch_size=8, verbose=0)
        print(len(jax.devices()), sum("program" in name for name in programs))
        """,
        JAX_NUM_CPU_DEVICES="1",
        JAX_PLATFORMS="cpu",
        RX_COMPILATION_CACHE="off",
    )
    assert said.split() == ["1", "1"]


def test_a_test_step_may_write_weights_and_predict_takes_no_memory_over(mirrored):
    class Drifting(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def test_step(self, state, data):
            logs, (trainable, others, metrics) = super().test_step(state, data)
            return logs, ([value + 1 for value in trainable], others, metrics)

    with mirrored.scope():
        model = Drifting()
        model.compile(loss="mse")
    model.predict(X[:8], verbose=0)
    before = model.get_weights()
    model.evaluate(X[:8], Y[:8], batch_size=4, verbose=0)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_allclose(one, other + 2, rtol=1e-5)
    (program,) = model.predict_function._programs.values()
    assert not program.state.donates

"""Steps that call Python: a function that raises changes no variable, on any number of devices."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import keras
import numpy as np
import pytest
from jax.experimental import io_callback

import replicax as rx
from replicax._core import host_calls

X, Y = np.ones((8, 4), "float32"), np.zeros((8, 1), "float32")
CALLERS = {
    "pure": lambda fn, x: jax.pure_callback(fn, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    "io": lambda fn, x: io_callback(fn, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    "debug": lambda fn, x: (jax.debug.callback(fn, x), x)[1],
}


class Calling(keras.layers.Layer):
    """Gives what a function of Python makes of its input."""

    def __init__(self, caller):
        super().__init__()
        self.caller, self.says = caller, None

    def call(self, x):
        return CALLERS[self.caller](self.answer, jax.lax.stop_gradient(x))

    def answer(self, x):
        if isinstance(self.says, Exception):
            raise self.says
        return np.asarray(x) if self.says is None else self.says


def a_model(strategy, caller):
    with strategy.scope():
        calling = Calling(caller)
        model = keras.Sequential([keras.Input((4,)), calling, keras.layers.Dense(1)])
        model.compile("adam", "mse")
    return model, calling


def ways(strategy, model):

    def step(x, y):
        def loss():
            return keras.ops.mean((model(x) - y) ** 2)

        _, gradients = rx.value_and_grad(loss, model.trainable_variables)()
        model.optimizer.apply(gradients, model.trainable_variables)

    return {
        "fit": lambda: model.fit(X, Y, batch_size=8, verbose=0),
        "run": lambda: strategy.run(step, (X, Y)),
        "function": rx.function(lambda: strategy.run(step, (X, Y))),
    }


def values(model):
    return [np.asarray(one.value) for one in (*model.variables, *model.optimizer.variables)]


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("way", ["fit", "run", "function"])
def test_a_function_that_raises_changes_no_variable(way, caller, mirrored):
    # Of two devices: without an answer for both, one waits for the other's gradients for ever.
    model, calling = a_model(mirrored, caller)
    step = ways(mirrored, model)[way]
    step()
    before = values(model)
    calling.says = LookupError("not today")
    with pytest.raises(LookupError, match="not today"):
        step()
    calling.says = None
    for now, then in zip(values(model), before, strict=True):
        np.testing.assert_array_equal(now, then)
    jax.effects_barrier()  # says nothing of it any more
    step()
    assert not np.array_equal(values(model)[0], before[0])


def test_a_result_of_another_shape_is_told(mirrored):
    model, calling = a_model(mirrored, "pure")
    calling.says = np.zeros(3, "float32")
    with pytest.raises(rx.errors.UsageError, match=r"float32\[8, 4\].*float32\[3\]"):
        ways(mirrored, model)["run"]()


@pytest.mark.parametrize("says", [1.5, np.float64(2), 3])
def test_a_result_of_a_wider_type_is_as_jax_takes_it(says):
    asked = rx.function(lambda x: CALLERS["pure"](lambda _: says, x))
    kind = "int32" if isinstance(says, int) else "float32"
    assert asked(np.zeros((), kind)) == says


@pytest.mark.parametrize("caller", ["pure", "io"])
def test_programs_of_two_threads_may_wait_for_each_other(caller):
    meeting = threading.Barrier(2, timeout=60)

    def met(x):
        meeting.wait()
        return np.asarray(x)

    steps = [rx.function(lambda x, n=n: CALLERS[caller](met, x) + n) for n in (1, 2)]
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda step: float(step(np.float32(0))), steps)
        assert list(found) == [1, 2]


def test_a_program_that_fails_in_a_call_raises_there():
    def fail(x):
        raise LookupError("inside")

    inner, caught = rx.function(lambda x: CALLERS["pure"](fail, x)), []

    def call(x):
        try:
            return np.asarray(inner(np.float32(1)))
        except LookupError as error:
            caught.append(str(error))
            return np.float32(7)

    outer = rx.function(lambda x: CALLERS["pure"](call, x))
    assert float(outer(np.float32(0))) == 7
    assert caught == ["inside"]


def test_a_program_of_the_user_fails_as_without_us():
    strategy = rx.MirroredStrategy(["CPU:0"])

    def fail(x):
        raise LookupError("not today")

    step = jax.jit(lambda x: strategy.run(lambda: CALLERS["pure"](fail, x)))
    with pytest.raises(Exception, match="not today"):
        jax.block_until_ready(step(np.float32(1)))


def test_our_waits_do_not_repeat_what_a_program_of_jax_has_said():
    def fail(x):
        raise ValueError("said before")

    with pytest.raises(Exception, match="said before"):
        jax.block_until_ready(jax.jit(lambda x: CALLERS["io"](fail, x))(X))
    host_calls.flush()


class Broken:
    """A compiled step that fails when it has used up what it was given."""

    def __call__(self, written, others, arrays):
        for value in written:
            value.delete()
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")


def test_a_step_that_loses_variables_says_so_and_each_later_one():
    with rx.OneDeviceStrategy("CPU:0").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    (program,) = model.train_function._programs.values()
    works, program._call = program._call, Broken()
    for _ in range(2):
        with pytest.raises(RuntimeError) as failed:
            model.fit(X, Y, batch_size=8, verbose=0)
        assert "checkpoint" in failed.value.__notes__[0]
        assert "kernel" in failed.value.__notes__[0]
        program._call = works

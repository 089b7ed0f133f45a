"""A program reuses the memory of what it writes, and steps wait where they could dead-lock."""

import gc

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax import tf
from replicax._program import program
from replicax._program.program import in_flight_on

from helpers import run_python


def counter():
    variable = keras.Variable(np.zeros(8, "float32"))

    @rx.function
    def step():
        variable.assign_add(jnp.ones(8))

    step()
    return variable, step


def test_memory_is_reused():
    variable, step = counter()
    reused = []
    for _ in range(3):
        pointer = variable.value.unsafe_buffer_pointer()
        step()
        reused.append(variable.value.unsafe_buffer_pointer() == pointer)
    assert any(reused)
    assert variable.value.tolist() == [4.0] * 8


@pytest.mark.parametrize("hold", [lambda v: v.value, lambda v: np.asarray(v.value)])
def test_what_the_user_holds_stays(hold):
    variable, step = counter()
    held = hold(variable)
    step()
    step()
    assert held.tolist() == [1.0] * 8
    assert variable.value.tolist() == [3.0] * 8


def test_values_that_are_gone_leave_nothing_behind():
    gc.collect()
    before = set(program._made)
    variable, step = counter()
    step()
    assert id(variable) in program._made
    del variable, step
    gc.collect()
    assert set(program._made) <= before


def test_run_and_function_take_turns(mirrored):
    with mirrored.scope():
        variable = keras.Variable(np.zeros(8, "float32"))

    def add():
        variable.assign_add(jnp.ones(8))

    step = rx.function(lambda: mirrored.run(add))
    for _ in range(3):
        step()
        mirrored.run(add)
    assert variable.value.tolist() == [6.0] * 8


def test_a_check_that_fails_leaves_the_variables():
    variable = keras.Variable(np.zeros(8, "float32"))

    @rx.function
    def step(x):
        tf.debugging.assert_greater(x, 0.0)
        variable.assign_add(x * jnp.ones(8))

    step(jnp.float32(1.0))
    with pytest.raises(rx.errors.UsageError, match=r"x is greater than y"):
        step(jnp.float32(-1.0))
    assert variable.value.tolist() == [1.0] * 8


CPUS = jax.devices("cpu")
X = np.ones((4, 3), "float32")
Y = np.ones((4, 1), "float32")


@pytest.fixture(autouse=True)
def nothing_in_flight():
    for queue in program._by_devices.values():
        queue.wait()


def strategy_of(*devices):
    return rx.MirroredStrategy([f"CPU:{device}" for device in devices])


def summed():
    return rx.get_replica_context().all_reduce("SUM", jnp.ones(3))


def by_run(strategy):
    return lambda: strategy.run(summed)


def by_function(strategy):
    return rx.function(lambda: strategy.run(summed))


def by_method(strategy):
    class Trainer:
        @rx.function
        def step(self):
            return strategy.run(summed)

    return Trainer().step


def model_of(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def by_fit(strategy):
    model = model_of(strategy)
    return lambda: model.fit(X, Y, batch_size=4, verbose=0)


def by_evaluate(strategy):
    model = model_of(strategy)
    return lambda: model.evaluate(X, Y, batch_size=4, verbose=0)


def by_predict(strategy):
    model = model_of(strategy)
    return lambda: model.predict(X, batch_size=4, verbose=0)


@pytest.fixture
def waited_for(monkeypatch):
    """The devices of each array that somebody has waited for."""
    kind, seen = type(jnp.zeros(())), []
    original = kind.block_until_ready

    def block_until_ready(self):
        seen.append(self.sharding.device_set)
        return original(self)

    monkeypatch.setattr(kind, "block_until_ready", block_until_ready)
    return seen


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (by_run, by_function),
        (by_function, by_function),
        (by_function, by_run),
        (by_method, by_method),
        (by_function, by_fit),
        (by_fit, by_evaluate),
        (by_evaluate, by_predict),
        (by_predict, by_run),
    ],
)
def test_a_step_waits_for_the_step_before_it(first, second, waited_for):
    strategy = strategy_of(0, 1)
    later = second(strategy)
    first(strategy)()
    waited_for.clear()
    later()
    assert waited_for[:1] == [set(CPUS[:2])]


@pytest.mark.parametrize(
    ("devices", "others", "waits"),
    [
        ((0, 1), (0, 1), True),
        ((0, 1), (1, 0), True),
        ((0, 1), (0, 1, 2, 3), True),
        ((0, 1, 2, 3), (2, 3), True),
        ((0, 1), (1, 2), True),
        ((0, 1), (2, 3), False),
        ((0,), (0, 1), False),
        ((0, 1), (0,), False),
    ],
)
def test_strategies_wait_for_each_other_if_they_share_a_device(devices, others, waits, waited_for):
    first, second = by_run(strategy_of(*devices)), by_function(strategy_of(*others))
    first()
    waited_for.clear()
    second()
    assert waited_for == ([{CPUS[device] for device in devices}] if waits else [])


def test_a_function_that_goes_to_other_devices_waits_there(waited_for):
    double = rx.function(lambda x: x.sum() * 2)
    spread = jax.device_put(X, strategy_of(0, 1).extended.distribution.topology.split)
    double(X), double(spread)
    waited_for.clear()
    by_run(strategy_of(0, 1))()
    assert waited_for == [set(CPUS[:2])]


class Token:
    """What a step computes.

    Args:
        fails: Whether the step fails.
    """

    def __init__(self, *, fails=False):
        self.fails, self.waits = fails, 0

    def block_until_ready(self):
        self.waits += 1
        if self.fails:
            raise RuntimeError("failed")


def test_a_step_that_failed_is_told_of_once():
    queue, failed, token = in_flight_on(CPUS[:2]), Token(fails=True), Token()
    queue.put(failed)
    with pytest.raises(RuntimeError, match="failed"):
        queue.wait()
    queue.wait()
    queue.put(token)
    queue.wait()
    queue.wait()
    assert (failed.waits, token.waits) == (1, 1)


def test_a_step_on_devices_that_cannot_dead_lock_is_not_kept():
    queue, token = in_flight_on(CPUS[:1]), Token()
    queue.put(token)
    queue.wait()
    assert token.waits == 0


IN_TURN = """
import replicax as rx
rx.testing.virtual_devices(4)
import jax, jax.numpy as jnp, keras

strategy = rx.MirroredStrategy()
with strategy.scope():
    seen = [keras.Variable(jnp.zeros(2000)) for _ in range(3)]

def step(variable):
    total = rx.get_replica_context().all_reduce("SUM", jnp.ones(2000))
    for _ in range(3):
        total = rx.get_replica_context().all_reduce("SUM", jnp.tanh(total))
    variable.assign_add(total)

train, test = (rx.function(lambda v=v: strategy.run(step, args=(v,))) for v in seen[:2])
for _ in range(200):
    train(), test(), strategy.run(step, args=(seen[2],))
print({float(variable.value[0]) for variable in seen})
"""


def test_hundreds_of_steps_of_two_functions_in_turn_end():
    assert run_python(IN_TURN).count(",") == 0

"""`rx.function`: one program per signature, and state in Keras variables."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.values import Mirrored, PerReplica
from replicax._function.function import run_functions_eagerly


def test_variables_are_read_and_written():
    v = keras.Variable(1.0)

    @rx.function
    def step(x):
        v.assign_add(x)
        return v * 10.0

    assert [float(step(jnp.float32(x))) for x in (1, 2)] == [20.0, 40.0]
    assert float(v.value) == 4.0


def test_a_change_from_outside_is_seen():
    v = keras.Variable(1.0)
    read = rx.function(lambda: v + 0.0)
    assert float(read()) == 1.0
    v.assign(5.0)
    assert float(read()) == 5.0
    assert read.num_traces == 1


def test_one_program_per_signature():
    traced = []

    @rx.function
    def double(x):
        traced.append(x.shape)
        return x * 2

    for size in (2, 2, 3, 2):
        assert double(jnp.ones(size)).shape == (size,)
    assert double.num_traces == 2
    assert traced == [(2,), (3,)]


def test_python_values_are_part_of_the_program():
    seen = []

    @rx.function
    def scale(x, factor, *, name=None, flag=False):
        seen.append((factor, name, flag))
        return x * factor if flag else x

    one = jnp.float32(1.0)
    assert float(scale(one, 3, flag=True)) == 3.0
    assert float(scale(one, 3, flag=False)) == 1.0
    assert float(scale(one, 3, name="n")) == 1.0
    assert float(scale(one, 3, flag=True)) == 3.0
    assert seen == [(3, None, True), (3, None, False), (3, "n", False)]
    assert scale.num_traces == 3


def test_arguments_may_be_nests():
    @rx.function
    def total(batch, *, extra):
        return batch["x"] + batch["y"][0] + extra

    assert float(total({"x": jnp.float32(1), "y": [np.float32(2)]}, extra=np.ones(())) + 0) == 4.0


def test_what_comes_back():
    v = keras.Variable(2.0)

    @rx.function
    def everything(x):
        return {"array": x, "none": None, "text": "t", "number": 3, "variable": v, "list": [x, ()]}

    for _ in range(2):
        out = everything(jnp.float32(1.0))
        assert isinstance(out["array"], jax.Array)
        assert isinstance(out["variable"], jax.Array)  # its value now
        assert float(out["variable"]) == 2.0
        assert (out["none"], out["text"], out["number"]) == (None, "t", 3)
        assert out["list"][1] == ()


def test_nothing_may_come_back():
    v = keras.Variable(0.0)

    @rx.function
    def increment():
        v.assign_add(1.0)

    assert increment() is None
    assert float(v.value) == 1.0
    assert rx.function(lambda: None)() is None


def test_it_decorates():
    @rx.function
    def named(x):
        """Say what it does."""
        return x

    assert (named.__name__, named.__doc__) == ("named", "Say what it does.")

    @rx.function()
    def with_brackets(x):
        return x + 1

    assert float(with_brackets(jnp.float32(1))) == 2.0


def test_what_jax_compiles_may_hold_a_function_without_variables():
    double = rx.function(lambda x: x * 2)
    assert float(jax.jit(lambda x: double(x) + 1)(3.0)) == 7.0
    assert float(double(jnp.float32(5.0))) == 10.0
    counter = Counter(1.0)
    with pytest.raises(rx.errors.UsageError, match="inside `jax.jit`"):
        jax.jit(counter.add)(3.0)
    assert float(counter.add(jnp.float32(2.0))) == 3.0


def test_without_xla_it_is_compiled_as_well():
    # `jit_compile=False` means "without XLA" in TensorFlow, not "run eagerly".
    with pytest.raises(rx.errors.LeakedTracer, match="needs the value of an array"):
        rx.function(jit_compile=False)(float)(jnp.float32(2.0))


def test_functions_run_eagerly_if_that_is_wanted():
    fn = rx.function(lambda x: float(x))
    run_functions_eagerly(True)
    try:
        assert fn(jnp.float32(2.0)) == 2.0
    finally:
        run_functions_eagerly(False)
    with pytest.raises(rx.errors.LeakedTracer):
        fn(jnp.float32(2.0))


class Counter:
    def __init__(self, start):
        self.total = keras.Variable(start)

    @rx.function
    def add(self, x):
        self.total.assign_add(x)
        return self.total + 0.0

    @staticmethod
    @rx.function
    def double(x):
        return x * 2

    @rx.function
    def __call__(self, x):
        return self.add(x)


def test_methods_belong_to_their_object():
    one, ten = Counter(1.0), Counter(10.0)
    x = jnp.float32(1.0)
    assert [float(counter.add(x)) for counter in (one, ten, one)] == [2.0, 11.0, 3.0]
    assert Counter.add.num_traces == 2
    assert float(Counter.add(ten, x)) == 12.0
    assert Counter.add.num_traces == 2
    assert float(Counter.double(x)) == 2.0
    assert float(one(x)) == 4.0


def test_a_partial_function_and_a_callable_object_can_be_compiled():
    assert float(rx.function(functools.partial(jnp.add, 1.0))(jnp.float32(2.0))) == 3.0

    class Plus:
        def __call__(self, x):
            return x + 1.0

    assert float(rx.function(Plus())(jnp.float32(2.0))) == 3.0


def test_a_function_inside_another_becomes_part_of_it():
    v = keras.Variable(1.0)

    @rx.function
    def inner(x):
        v.assign_add(x)
        return v * 1.0

    @rx.function
    def outer(x):
        return inner(x) + inner(x)

    assert float(outer(jnp.float32(1.0))) == 2.0 + 3.0
    assert float(v.value) == 3.0
    assert (inner.num_traces, outer.num_traces) == (0, 1)


def test_a_failed_call_changes_nothing_and_can_be_repaired():
    v, fail = keras.Variable(1.0), [True]

    @rx.function
    def step(x):
        v.assign_add(x)
        if fail[0]:
            raise KeyError("mine")
        return v * 1.0

    with pytest.raises(KeyError, match="mine"):
        step(jnp.float32(1.0))
    assert (float(v.value), step.num_traces) == (1.0, 0)
    fail[0] = False
    assert float(step(jnp.float32(1.0))) == 2.0


def clipped(x):
    if x.sum() > 1:
        return x * 0 + 1
    return x


class Clipping(keras.Model):
    def call(self, x):
        return clipped(x)


def in_function(strategy):
    rx.function(clipped)(jnp.float32(2.0))


def in_run(strategy):
    strategy.run(clipped, args=(jnp.float32(2.0),))


def in_fit(strategy):
    with strategy.scope():
        model = Clipping()
        model.compile("sgd", "mse")
    model.built = True
    model.fit(np.ones((4, 1), "float32"), np.ones((4, 1), "float32"), verbose=0)


@pytest.mark.parametrize("way", [in_function, in_run, in_fit])
def test_the_error_names_the_line_and_the_fix(mirrored, way):
    wanted = r"at test_function.py:\d+, `if x.sum\(\) > 1:`.*`replicax.tf`.*`keras.ops.cond`"
    with pytest.raises(rx.errors.LeakedTracer, match=wanted):
        way(mirrored)


def test_two_variables_with_one_value():
    value = jnp.ones(2)
    a, b = keras.Variable(value), keras.Variable(value)

    @rx.function
    def step():
        a.assign_add([1.0, 1.0])

    step()
    assert (a.value.tolist(), b.value.tolist()) == ([2.0, 2.0], [1.0, 1.0])


def test_per_replica_arguments(mirrored):
    value = mirrored.experimental_distribute_values_from_function(
        lambda context: np.float32(context.replica_id_in_sync_group + 1)
    )

    @rx.function
    def step(value, factor):
        assert isinstance(value, PerReplica)
        squares = mirrored.run(lambda x: x * x * factor, args=(value,))
        return squares, mirrored.reduce("SUM", squares, axis=None)

    squares, total = step(value, 2)
    assert [float(v) for v in mirrored.experimental_local_results(squares)] == [2.0, 8.0]
    assert float(total) == 10.0
    step(value, 2)
    assert step.num_traces == 1


def test_mirrored_arguments(mirrored):
    ones = mirrored.run(lambda: jnp.ones(2))
    assert isinstance(ones, Mirrored)
    assert rx.function(lambda x: mirrored.reduce("SUM", x, axis=None))(ones).tolist() == [2.0, 2.0]


def test_a_step_with_variables_of_a_strategy(strategy):
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        v = keras.Variable(0.0, aggregation="sum")

    @rx.function
    def step(x):
        strategy.run(lambda x: v.assign_add(x), args=(x,))
        return v * 2.0

    x = jnp.float32(1.0)
    assert [float(step(x)) for _ in range(2)] == [2.0 * replicas, 4.0 * replicas]
    assert float(v.value) == 2.0 * replicas
    assert step.num_traces == 1


def test_variables_stay_where_they_live(mirrored):
    with mirrored.scope():
        v = keras.Variable(np.zeros(4, "float32"))
    before = v.value.sharding
    rx.function(lambda: v.assign(v + 1.0))()
    assert v.value.sharding == before
    assert len(v.value.devices()) == 2


OWNED = ["one_device", "mirrored_2", "central_storage_2"]
owned = pytest.mark.parametrize("strategy", OWNED, indirect=True)


@owned
def test_a_variable_made_outside_is_adopted_inside_a_function(strategy):
    v = keras.Variable(1.0, aggregation="mean")

    @rx.function
    def step(x):
        strategy.run(lambda x: v.assign_add(x), args=(x,))
        return v * 2.0

    assert float(step(jnp.float32(1.0))) == 4.0
    assert float(v.value) == 2.0
    assert strategy.extended.variable_created_in_scope(v)


@owned
def test_a_failed_trace_leaves_a_variable_made_outside_usable(strategy):
    v = keras.Variable(1.0)

    @rx.function
    def step():
        strategy.run(lambda: v.assign_add(1.0))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        step()
    assert float(v.value) == 1.0


@owned
@pytest.mark.parametrize("inside", [True, False], ids=["made in the scope", "made outside"])
def test_a_training_step_of_run_inside_a_function(strategy, inside):
    with strategy.scope() if inside else contextlib.nullcontext():
        model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
        optimizer = keras.optimizers.SGD(0.25)

    def replica_fn(x):
        value, grads = rx.value_and_grad(
            lambda: jnp.mean(model(x)) / strategy.num_replicas_in_sync, model
        )()
        optimizer.apply(grads, model.trainable_variables)
        return value

    @rx.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=None)

    (batch,) = strategy.experimental_distribute_dataset([np.ones((4, 2), "float32")])
    # The mean output is 2; each of the three ones it is made of adds 1 to the gradient.
    assert [float(step(batch)) for _ in range(2)] == pytest.approx([2.0, 2.0 - 0.25 * 3])
    assert int(optimizer.iterations) == 2

"""`rx.value_and_grad`: expected gradients by hand."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx


def floats(nest):
    return [np.asarray(leaf).tolist() for leaf in nest]


def test_one_gradient_per_variable_in_order():
    a, b = keras.Variable(3.0), keras.Variable(5.0)
    value, grads = rx.value_and_grad(lambda: a * a * b, [b, a])()
    assert float(value) == 45.0
    assert floats(grads) == [9.0, 30.0]
    assert (float(a.value), float(b.value)) == (3.0, 5.0)


def test_a_single_variable():
    a = keras.Variable(3.0)
    value, (gradient,) = rx.value_and_grad(lambda x, *, power: (a * x) ** power, a)(2.0, power=2)
    assert (float(value), float(gradient)) == (36.0, 24.0)


def test_something_beside_the_value():
    a = keras.Variable(3.0)
    fn = rx.value_and_grad(lambda: (a * a, {"twice": a * 2.0, "text": "t"}), [a], has_aux=True)
    (value, aux), grads = fn()
    assert (float(value), floats(grads)) == (9.0, [6.0])
    assert (float(aux["twice"]), aux["text"]) == (6.0, "t")


def test_an_unused_variable_has_a_zero_gradient():
    a, b = keras.Variable(3.0), keras.Variable(np.ones(2, "float32"))
    _, grads = rx.value_and_grad(lambda: a * a, [a, b])()
    assert floats(grads) == [6.0, [0.0, 0.0]]


def test_a_model_stands_for_its_trainable_variables():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    _, grads = rx.value_and_grad(lambda x: jnp.sum(model(x)), model)(jnp.ones((4, 2)))
    assert [g.shape for g in grads] == [v.shape for v in model.trainable_variables]
    assert grads[1].tolist() == [4.0]


def test_a_layer_stands_for_its_trainable_variables():
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    layer.build((None, 2))
    value, (gradient,) = rx.value_and_grad(lambda x: jnp.sum(layer(x)), layer)(jnp.ones((3, 2)))
    assert (float(value), gradient.tolist()) == (6.0, [[3.0], [3.0]])


def test_a_model_that_is_not_built_inside_a_function():
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    step = rx.function(lambda x: rx.value_and_grad(lambda: jnp.sum(model(x)), model)())
    value, grads = step(jnp.ones((3, 2)))
    assert float(value) == 6.0
    assert floats(grads) == [[[3.0], [3.0]], [3.0]]


def test_variables_listed_before_the_model_is_built():
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])

    @rx.function
    def step(x):
        value, grads = rx.value_and_grad(lambda: jnp.sum(model(x)), model.trainable_variables)()
        return value, [g * v for g, v in zip(grads, model.trainable_variables, strict=True)]

    _, products = step(jnp.ones((3, 2)))
    assert floats(products) == [[[3.0], [3.0]], [0.0]]


def test_a_model_that_is_not_built_outside_a_function():
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    fn = rx.value_and_grad(lambda x: jnp.sum(model(x)), model)
    for _ in range(2):
        value, grads = fn(jnp.ones((3, 2)))
        assert float(value) == 6.0
        assert len(grads) == len(model.trainable_variables) == 2


@pytest.mark.parametrize("none", [[], (), keras.Sequential()], ids=["list", "tuple", "model"])
def test_no_variables(none):
    with pytest.raises(rx.errors.UsageError, match="No variables"):
        rx.value_and_grad(lambda: jnp.float32(1.0), none)()


def test_no_variables_inside_a_function():
    with pytest.raises(rx.errors.UsageError, match="variables to differentiate by"):
        rx.function(lambda: rx.value_and_grad(lambda: jnp.float32(1.0), [])())()


def test_other_variables_that_are_written_keep_the_new_value():
    a, steps = keras.Variable(3.0), keras.Variable(0.0)

    def fn():
        steps.assign_add(1.0)
        return a * a

    rx.value_and_grad(fn, [a])()
    assert float(steps.value) == 1.0
    rx.function(lambda: rx.value_and_grad(fn, [a])()[0])()
    assert float(steps.value) == 2.0


def test_batch_statistics_are_updated():
    layer = keras.layers.BatchNormalization(momentum=0.5)
    layer.build((None, 1))
    x = jnp.array([[1.0], [3.0]])
    _, grads = rx.value_and_grad(lambda: jnp.sum(layer(x, training=True)), layer)()
    assert layer.moving_mean.value.tolist() == [1.0]  # 0.5 * 0 + 0.5 * 2
    assert layer.moving_variance.value.tolist() == [1.0]  # 0.5 * 1 + 0.5 * 1
    assert grads[1].tolist() == [2.0]  # by the offset: one per row


def test_a_variable_written_inside_is_differentiated_through():
    a = keras.Variable(3.0)

    def fn():
        a.assign(a * 2.0)
        return a * a

    value, (gradient,) = rx.value_and_grad(fn, [a])()
    assert (float(value), float(gradient)) == (36.0, 24.0)  # (2a)² and 8a
    assert float(a.value) == 6.0


@pytest.mark.parametrize("compiled", [False, True])
def test_second_order(compiled):
    a = keras.Variable(3.0)

    def second():
        def first():
            _, (gradient,) = rx.value_and_grad(lambda: a**3, [a])()
            return gradient

        return rx.value_and_grad(first, [a])()

    value, (gradient,) = (rx.function(second) if compiled else second)()
    assert (float(value), float(gradient)) == (27.0, 18.0)  # 3a² and 6a


def test_an_inner_gradient_may_have_other_variables():
    a, b = keras.Variable(3.0), keras.Variable(5.0)

    def outer():
        _, (gradient,) = rx.value_and_grad(lambda: a * a * b, [a])()
        return gradient  # 2ab

    _, grads = rx.value_and_grad(outer, [b])()
    assert floats(grads) == [6.0]


def test_the_gradient_of_a_mixed_precision_variable_has_its_type():
    layer = keras.layers.Dense(1, dtype="mixed_bfloat16")
    layer.build((None, 2))
    _, grads = rx.value_and_grad(lambda x: jnp.sum(layer(x)).astype("float32"), layer)(
        jnp.ones((3, 2))
    )
    assert [g.dtype for g in grads] == ["float32", "float32"]


def test_an_error_inside_leaves_the_variables_alone():
    a = keras.Variable(3.0)

    def fn():
        a.assign(4.0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rx.value_and_grad(fn, [a])()
    assert float(a.value) == 3.0


@pytest.mark.parametrize(
    ("result", "has_aux"),
    [
        (lambda a: a * 2.0, False),
        (lambda a: (keras.ops.sum(a), 1), False),
        (lambda a: keras.ops.sum(a), True),
        (lambda a: (keras.ops.sum(a), 1, 2), True),
        (lambda a: None, False),
    ],
)
def test_a_value_that_is_no_scalar_is_refused(result, has_aux):
    a = keras.Variable(np.ones(2, "float32"))
    with pytest.raises(rx.errors.UsageError, match=f"scalar.*has_aux={has_aux} it returned"):
        rx.value_and_grad(lambda: result(a), [a], has_aux=has_aux)()


def test_swapped_arguments_are_told():
    a = keras.Variable(1.0)
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(rx.errors.UsageError, match="comes first"):
        rx.value_and_grad([a], lambda: a * a)
    with pytest.raises(rx.errors.UsageError, match="comes first"):
        rx.value_and_grad(model, lambda: a * a)()


def test_gradients_inside_run(strategy):
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        a = keras.Variable(3.0)

    def replica_fn():
        number = rx.get_replica_context().replica_id_in_sync_group
        _, (gradient,) = rx.value_and_grad(lambda: a * (number + 1.0), [a])()
        return gradient

    grads = strategy.run(replica_fn)
    assert floats(strategy.experimental_local_results(grads)) == [r + 1.0 for r in range(replicas)]


def test_only_variables_are_differentiated_by():
    one, other = keras.Variable(1.0), keras.Variable(2.0)
    with pytest.raises(rx.errors.UsageError, match="Join"):
        rx.value_and_grad(lambda: one * other, [[one], [other]])()

"""`GradientTape`: by hand, compiled and at once, and as `value_and_grad` says."""

import logging
import threading

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

import replicax as rx
import replicax.tf as tf
from replicax._core.errors import PerReplicaMisuse, TapeMisuse, UsageError
from replicax._core.values import Mirrored, PerReplica
from replicax._tape.tape_entries import UnconnectedGradients

TWO, THREE = jnp.float32(2.0), jnp.float32(3.0)


@pytest.fixture(params=["compiled", "eager"])
def once(request):
    """Call a function: compiled, or as it is."""
    return lambda fn, *args: (rx.function(fn) if request.param == "compiled" else fn)(*args)


def close(found, expected):
    if isinstance(found, list | tuple):
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    else:
        np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-5, atol=1e-5)


def test_variables_are_watched_when_they_are_read(once):
    w, b = keras.Variable(3.0), keras.Variable(1.0)
    frozen = keras.Variable(5.0, trainable=False)

    def fn(x):
        with rx.GradientTape() as tape:
            y = w * w * x + b * frozen
        return tape.gradient(y, {"w": w, "others": (b, frozen)}), len(tape.watched_variables())

    gradients, watched = once(fn, TWO)
    # 2wx, and the frozen one's value
    close((gradients["w"], gradients["others"][0]), (12.0, 5.0))
    assert gradients["others"][1] is None
    assert watched == 2


def test_what_is_watched_can_be_chosen(once):
    w, frozen = keras.Variable(3.0), keras.Variable(5.0, trainable=False)

    def fn(x):
        with rx.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([frozen, x])
            y = w * frozen * x
        return tape.gradient(y, [w, frozen, x]), [v.path for v in tape.watched_variables()]

    gradients, paths = once(fn, TWO)
    assert gradients[0] is None
    close(gradients[1:], [6.0, 15.0])
    assert paths == [frozen.path]


def test_only_what_the_block_computes_counts(once):
    def fn(x):
        before = x * 10
        with rx.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            z = y + before
        after = y * 100
        return tape.gradient([y, z, after], [x, y])

    # dy/dx = 4, dz/dx = 4, nothing through `before` and `after`; dy/dy + dz/dy = 2
    close(once(fn, TWO), [8.0, 2.0])


def test_values_are_ordinary_after_the_block(once):
    def fn(x):
        with rx.GradientTape() as tape:
            tape.watch(x)
            y = jnp.sin(x)
        return y + tape.gradient(y, x), y

    total, y = once(fn, TWO)
    close((total, y), (np.sin(2) + np.cos(2), np.sin(2)))


def test_unconnected_sources(once):
    w, unread = keras.Variable([1.0, 2.0]), keras.Variable([[1.0], [2.0]])

    def fn(x, how):
        with rx.GradientTape() as tape:
            tape.watch(x)
            keras.ops.sum(w)
            y = x * 2
        return tape.gradient(y, [w, unread, x], unconnected_gradients=how)

    assert once(lambda x: fn(x, "none")[:2], TWO) == [None, None]
    zeros = once(lambda x: fn(x, UnconnectedGradients.ZERO), TWO)
    close(zeros, [np.zeros(2), np.zeros((2, 1)), 2.0])
    with pytest.raises(ValueError, match="'other' is not a valid UnconnectedGradients"):
        fn(TWO, "other")


def test_a_value_that_does_not_depend_on_a_source_gives_none(once):
    def fn(x):
        with rx.GradientTape(persistent=True) as tape:
            tape.watch(x)
            stopped = lax.stop_gradient(x) * 2
            index = jnp.argmax(x)
            same = keras.ops.stop_gradient(x) + x
        constant = jnp.float32(1.0)
        found = [tape.gradient(target, x) for target in (stopped, index, constant)]
        return found, tape.gradient(same, x)

    nothing, one = once(fn, TWO)
    assert nothing == [None, None, None]
    close(one, 1.0)


def test_output_gradients_and_nests_of_targets(once):
    def fn(x):
        with rx.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = {"a": x**2, "b": x * 3}
        weights = {"a": jnp.array([1.0, 10.0]), "b": None}
        return tape.gradient(y, x, output_gradients=weights), tape.gradient([y["a"], y["a"]], x)

    weighted, doubled = once(fn, jnp.array([1.0, 2.0]))
    close(weighted, [1 * 2 + 3, 10 * 4 + 3])
    close(doubled, [4.0, 8.0])


def test_wrong_output_gradients():
    with rx.GradientTape(persistent=True) as tape:
        tape.watch(TWO)
        y = TWO * 2
    with pytest.raises(UsageError, match="2 gradients for 1"):
        tape.gradient(y, TWO, output_gradients=[None, None])
    with pytest.raises(UsageError, match=r"gradient of shape \(2,\)"):
        tape.gradient(y, TWO, output_gradients=jnp.ones(2))


def test_gradients_once_or_often():
    with rx.GradientTape() as tape:
        tape.watch(TWO)
        y = TWO**2
    close(tape.gradient(y, TWO), 4.0)
    with pytest.raises(TapeMisuse, match="persistent=True"):
        tape.gradient(y, TWO)
    with tape:  # it begins anew
        tape.watch(TWO)
        y = TWO**3
    close(tape.gradient(y, TWO), 12.0)
    with rx.GradientTape(persistent=True) as tape:
        tape.watch(TWO)
        y, z = TWO**2, TWO * 7
    close([tape.gradient(y, TWO), tape.gradient(z, TWO), tape.gradient(y, TWO)], [4, 7, 4])


def test_a_gradient_in_the_block_ends_the_recording_unless_the_tape_is_persistent(once):
    def fn(x, persistent):
        with rx.GradientTape(persistent=persistent) as tape:
            tape.watch(x)
            y = x**3
            slope = tape.gradient(y, x)
            z = slope * x
        return slope, tape.gradient(z, x) if persistent else z

    # 3x², and the derivative of 3x³
    close(once(lambda x: fn(x, True), TWO), (12.0, 36.0))
    close(once(lambda x: fn(x, False), TWO), (12.0, 24.0))


def test_a_second_derivative_with_one_persistent_tape(once):
    def fn(x):
        with rx.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = jnp.sin(x) + jax.nn.relu(x) ** 2
            slope = tape.gradient(y, x)
        return tape.gradient(slope, x)

    close(once(fn, TWO), 2 - np.sin(2))


def test_nested_tapes(once):
    w = keras.Variable(3.0)

    def fn(x):
        with rx.GradientTape() as outer:
            outer.watch(x)
            with rx.GradientTape() as inner:
                inner.watch(x)
                y = w**2 * x**3
            slopes = inner.gradient(y, [x, w])
            total = slopes[0] + slopes[1]
        return slopes, outer.gradient(total, [x, w])

    slopes, second = once(fn, TWO)
    close(slopes, [9 * 12.0, 6 * 8.0])
    # 3w²x² + 2wx³ by x: 6w²x + 6wx²; by w: 6wx² + 2x³
    close(second, [108.0 + 72.0, 72.0 + 16.0])


def test_two_tapes_of_one_computation(once):
    a, b = keras.Variable(2.0), keras.Variable(5.0)

    def fn(x):
        with rx.GradientTape() as first, rx.GradientTape() as second:
            y, z = a * b * x, b * b
        return first.gradient(y, [a, b]), second.gradient([y, z], [a, b])

    # by a: bx; by b: ax, and with z ax + 2b
    close(once(fn, THREE), ([15.0, 6.0], [15.0, 16.0]))


def test_stop_recording_and_reset(once):
    w = keras.Variable(3.0)

    def fn(x):
        with rx.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * w
            with tape.stop_recording():
                unseen = x * w * 100
            gradients = tape.gradient(y + unseen, [x, w])
            tape.reset()
            z = x * w
        return gradients, tape.gradient(z, [x, w])

    unwatched = once(lambda x: fn(x)[1][0], TWO)
    assert unwatched is None
    close(once(lambda x: (*fn(x)[0], fn(x)[1][1]), TWO), (3.0, 2.0, 2.0))


def test_what_belongs_into_the_block():
    tape = rx.GradientTape()
    for use in (lambda: tape.watch(TWO), tape.reset, lambda: tape.stop_recording().__enter__()):
        with pytest.raises(TapeMisuse, match="outside the tape's block"):
            use()
    with tape, pytest.raises(TapeMisuse, match="already open"), tape:
        pass
    with pytest.raises(ZeroDivisionError), rx.GradientTape() as tape:
        1 / 0  # noqa: B018
    close(jnp.sin(TWO), np.sin(2))


def test_an_assignment_in_the_block(once):
    w, total = keras.Variable(3.0), keras.Variable(0.0, trainable=False)

    def fn(x):
        with rx.GradientTape() as tape:
            y = w * w * x
            w.assign(w * 10)
            total.assign_add(y)
            z = y + w * x + total * w
        return tape.gradient(z, w)

    # As TensorFlow answers: all reads are of w, and no gradient flows through what is assigned.
    # y by w: 2·3·2; w = 30 by w: x = 2; total: 18
    close(once(fn, TWO), 12.0 + 2.0 + 18.0)
    close((w.value, total.value), (30.0, 18.0))


def test_two_variables_that_hold_one_array(once):
    a, b = keras.Variable(1.0), keras.Variable(2.0)
    array = jnp.float32(4.0)

    def fn(x):
        a.assign(array)
        b.assign(array)
        with rx.GradientTape() as tape:
            y = a * b * b * array * x
        return tape.gradient(y, [a, b])

    # b²·4, and 2ab·4
    close(once(fn, jnp.float32(1.0)), [64.0, 128.0])


def test_a_variable_as_target(once):
    w = keras.Variable(3.0)

    def fn(x):
        with rx.GradientTape(persistent=True) as tape:
            y = w * x
        return tape.gradient(w, w), tape.gradient([y, w], w)

    close(once(fn, TWO), (1.0, 3.0))


def test_jacobians(once):
    w = keras.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    unread = keras.Variable([1.0, 2.0, 3.0])

    def fn(x):
        with rx.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = keras.ops.matmul(x, w)
            rows = x**2 + jnp.flip(x, 1)
        by_row = tape.batch_jacobian(rows, x)
        zeros = tape.jacobian(y, unread, unconnected_gradients="zero")
        return tape.jacobian(y, [x, w]), by_row, zeros

    x = jnp.arange(6.0).reshape(2, 3)
    (by_x, by_w), by_row, zeros = once(fn, x)
    kernel = np.array(w.value)
    # y[i, j] = Σ x[i, k] w[k, j]
    close(by_x, np.einsum("im,kj->ijmk", np.eye(2), kernel))
    close(by_w, np.einsum("ik,jn->ijkn", x, np.eye(2)))
    # x[i, k]² + x[i, 2 - k], by x[i, m]
    close(by_row, [np.diag(2 * row) + np.eye(3)[::-1] for row in np.array(x)])
    assert zeros.shape == (2, 2, 3)
    assert not zeros.any()


def test_jacobians_that_there_are_not():
    x = jnp.ones((2, 3))
    with rx.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = jnp.ones((2, 4)) * 2
    assert tape.jacobian(y, x) is None
    assert tape.batch_jacobian(y, x) is None
    assert tape.batch_jacobian(y, x, unconnected_gradients="zero").shape == (2, 4, 3)
    with pytest.raises(UsageError, match=r"shapes \(2, 4\) and"):
        tape.batch_jacobian(y, jnp.ones(3))


def test_what_is_no_array():
    per_replica, mirrored = PerReplica(jnp.ones(2)), Mirrored(TWO, 2)
    with rx.GradientTape(persistent=True) as tape:
        for value in (per_replica, mirrored):
            with pytest.raises(PerReplicaMisuse, match="cannot watch a .* value"):
                tape.watch(value)
        for value in (2.0, np.ones(2), "text"):
            with pytest.raises(UsageError, match="Convert it to an array"):
                tape.watch(value)
        tape.watch(TWO)
        y = TWO * 2
    with pytest.raises(PerReplicaMisuse, match="or combine the value with"):
        tape.gradient(per_replica, TWO)
    with pytest.raises(UsageError, match="differentiate by a float"):
        tape.gradient(y, [2.0])


def test_integers_are_not_followed(caplog):
    with caplog.at_level(logging.WARNING, "replicax"), rx.GradientTape() as tape:
        tape.watch(jnp.arange(3))
        y = jnp.arange(3) * 2
    assert tape.gradient(y, jnp.arange(3)) is None
    assert ["int32" in record.getMessage() for record in caplog.records] == [True] * 2


def test_a_variable_that_only_a_compiled_part_reads():
    w = keras.Variable(3.0)
    dense = keras.layers.Dense(2, name="dense")
    dense.build((None, 2))

    def in_jit(x):
        with rx.GradientTape() as tape:
            y = jax.jit(lambda x: w * x)(x)
        return tape.gradient(y, w)

    def looped(x):
        return keras.ops.scan(lambda carry, row: (carry, dense(row)), 0, x)[1]

    def in_loop(x):
        with rx.GradientTape() as tape:
            y = looped(x)
        return tape.gradient(y, dense.trainable_variables)

    with pytest.raises(TapeMisuse, match="rx.function"):
        in_jit(TWO)
    with pytest.raises(TapeMisuse, match="'dense/kernel'.*rx.function"):
        in_loop(jnp.ones((3, 1, 2)))
    close(rx.function(in_jit)(TWO), 2.0)
    x = jnp.ones((3, 1, 2))
    expected = rx.value_and_grad(lambda: jnp.sum(looped(x)), dense)()[1]
    close(rx.function(in_loop)(x), expected)
    with rx.GradientTape() as tape:  # what passes constants on hides nothing
        y = jax.vmap(lambda x: w * x)(jnp.ones(3))
        z = rx.function(lambda x: w * x)(TWO)
    close(tape.gradient([y, z], w), 5.0)


def test_what_compiled_functions_close_over():
    v, x = keras.Variable(3.0), jnp.float32(5.0)
    square = rx.function(lambda: (x * x, v.assign_add(1.0) * x))
    square()
    with rx.GradientTape(persistent=True) as tape:
        tape.watch(x)
        w = v * 2
        first, second = square()
        third = rx.function(lambda: w * w + v)()
        fourth = jax.jit(lambda a: a * w)(x)
    close([first, second, third, fourth], [25.0, 25.0, 69.0, 40.0])
    close(v.value, 5.0)
    close(tape.gradient([first, second], x), 15.0)  # 2x + v
    close(tape.gradient(third, w), 16.0)
    close(tape.gradient(fourth, [x, w]), [8.0, 5.0])


def test_numbers_that_a_tape_draws_at_once_and_what_python_computes():
    def draw():
        rx.tf.random.set_seed(1)
        with rx.GradientTape():
            return float(rx.tf.random.uniform([]))

    assert draw() == draw()
    with rx.GradientTape():  # a shape that compiled code could not know
        close(rx.tf.numpy_function(lambda x: np.full(3, x), [TWO], "float32"), [2.0] * 3)


def test_a_tape_around_value_and_grad_and_functions(once):
    w, v = keras.Variable(3.0), keras.Variable(2.0)

    def fn(x):
        with rx.GradientTape() as tape:
            _, (slope,) = rx.value_and_grad(lambda: w * w * v * x, [w])()
        return slope, tape.gradient(slope, [w, v])

    # 2wvx, by w and by v
    close(once(fn, TWO), (24.0, [8.0, 12.0]))


def test_a_regularizer_in_a_stateless_call():
    # Keras' regularizers ask the scope, not the variable; so does a `train_step` of one's own.
    layer = keras.layers.Dense(1, kernel_regularizer="l2", use_bias=False)
    layer.build((None, 2))
    kernel = jnp.array([[1.0], [2.0]])
    with keras.StatelessScope([(layer.kernel, kernel)]), rx.GradientTape() as tape:
        value = sum(layer.losses)
    close(tape.gradient(value, layer.kernel), 2 * 0.01 * kernel)


def noisy_model():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(8, activation="relu", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )


def test_a_model_with_noise_statistics_and_regularizers(once):
    model, twin = noisy_model(), noisy_model()
    x = jnp.array(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)

    def loss(model):
        return jnp.mean((model(x, training=True) - 1) ** 2) + sum(model.losses)

    def fn():
        with rx.GradientTape() as tape:
            value = loss(model)
        return value, tape.gradient(value, model.trainable_variables)

    found, expected = once(fn), rx.value_and_grad(lambda: loss(twin), twin)()
    close(found, expected)
    for ours, theirs in zip(model.variables, twin.variables, strict=True):
        close(ours.value, theirs.value)


def test_mixed_precision_gives_gradients_of_the_variables_type(once):
    layer = keras.layers.Dense(2, dtype="mixed_bfloat16")
    layer.build((None, 2))

    def fn(x):
        with rx.GradientTape() as tape:
            y = keras.ops.sum(layer(x))
        return tape.gradient(y, layer.trainable_variables)

    kernel, bias = once(fn, jnp.array([[1.0, 2.0]]))
    assert kernel.dtype == bias.dtype == jnp.float32
    close((kernel, bias), ([[1.0, 1.0], [2.0, 2.0]], [1.0, 1.0]))


def test_a_gradient_penalty(once):
    critic = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])

    def fn(x):
        with rx.GradientTape() as outer:
            with rx.GradientTape() as inner:
                inner.watch(x)
                score = critic(x) ** 2
            penalty = keras.ops.sum(inner.gradient(score, x) ** 2)
        return penalty, outer.gradient(penalty, critic.trainable_variables)

    w, x = np.array(critic.trainable_variables[0].value), np.array([[1.0, -2.0]], "float32")
    # score = (xw)², slope = 2(xw)wᵀ, penalty = 4 (xw)² |w|²
    out = (x @ w).item()
    norm = (w.T @ w).item()
    penalty, (gradient,) = once(fn, jnp.array(x))
    close((penalty, gradient), (4 * out**2 * norm, 8 * out * norm * x.T + 8 * out**2 * w))


def test_gradients_by_what_lies_between(once):
    # Grad-CAM: by the features of a layer within.
    features, head = keras.layers.Dense(3), keras.layers.Dense(2)
    features.build((None, 2))
    head.build((None, 3))

    def fn(x):
        with rx.GradientTape() as tape:
            inner = features(x)
            score = head(inner)[:, 1]
        return tape.gradient(score, inner)

    close(once(fn, jnp.ones((1, 2))), np.array(head.kernel.value)[None, :, 1])


def test_control_flow_that_reads_variables():
    w = keras.Variable(2.0)

    def fn(x):
        with rx.GradientTape() as tape:
            y = lax.cond(x > 0, lambda: w**2, lambda: w * 0)
            z = lax.fori_loop(0, 3, lambda i, c: c * w, x)
            s, _ = lax.scan(lambda c, r: (c + w * r, None), x, jnp.arange(3.0))
            r = jax.checkpoint(lambda v: jnp.sin(w * v))(x)
        return tape.gradient([y, z, s, r], w)

    # 2w + 3w²x + (0 + 1 + 2) + x cos(wx)
    close(rx.function(fn)(THREE), 4 + 36 + 3 + 3 * np.cos(6.0))


def test_the_forward_pass_is_computed_once():
    model = keras.Sequential([keras.Input((4,)), *[keras.layers.Dense(4) for _ in range(3)]])
    x = jnp.ones((2, 4))

    def with_tape(values):
        for variable, value in zip(model.trainable_variables, values, strict=True):
            variable.assign(value)
        with rx.GradientTape() as tape:
            loss = keras.ops.mean(model(x) ** 2)
        return loss, tape.gradient(loss, model.trainable_variables)

    def by_jax(values):
        def loss(values):
            return jnp.mean(model.stateless_call(values, [], x)[0] ** 2)

        return jax.value_and_grad(loss)(values)

    values = [variable.value for variable in model.trainable_variables]

    def dots(fn):
        with keras.StatelessScope():
            return jax.jit(fn).lower(values).as_text().count("stablehlo.dot_general")

    # 3 on the way there; on the way back 3 for kernels and 2 for what is between them.
    assert dots(with_tape) == dots(by_jax) == 8


def test_a_tape_that_is_kept_too_long_says_so():
    kept = []

    @rx.function
    def fn(x):
        with rx.GradientTape(persistent=True) as tape:
            tape.watch(x)
            kept.append((tape, x, x**2))
        return x

    fn(TWO)
    tape, x, y = kept[-1]
    with pytest.raises(jax.errors.UnexpectedTracerError):
        tape.gradient(y, x)


def reads_are_those_of_keras():
    owner = next(kind for kind in keras.Variable.__mro__ if "value" in vars(kind))
    readers = vars(owner)["value"].fget, keras.StatelessScope.get_current_value
    return {reader.__module__.startswith("keras") for reader in readers} == {True}


def test_reads_are_those_of_keras_again_after_the_last_tape():
    v = keras.Variable(3.0)
    with rx.GradientTape() as outer:
        with rx.GradientTape() as inner:
            y = v**2
        first = inner.gradient(y, v)
        assert not reads_are_those_of_keras()
    assert reads_are_those_of_keras()
    close([first, outer.gradient(first, v)], [6.0, 2.0])
    with pytest.raises(ZeroDivisionError), rx.GradientTape():
        _ = 1 / 0
    assert reads_are_those_of_keras()


def test_a_tape_hears_of_reads_when_that_of_another_thread_has_ended():
    v, found = keras.Variable(3.0), []
    begun, others = threading.Event(), threading.Event()

    def other():
        with rx.GradientTape() as tape:
            begun.set()
            others.wait(30)
            y = v**2
        found.append(tape.gradient(y, v))

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(30)
    with rx.GradientTape():
        pass
    others.set()
    thread.join(30)
    close(found, [6.0])
    assert reads_are_those_of_keras()


DRAW = np.random.default_rng(0)
ROWS = DRAW.normal(size=(2048, 16)).astype("float32")
IMAGES = DRAW.normal(size=(4, 16, 16, 16)).astype("float32")
KERNEL = DRAW.normal(size=(3, 3, 16, 16)).astype("float32")
IDS = DRAW.integers(0, 50, (512,))
TABLE = DRAW.normal(size=(50, 16)).astype("float32")

STEPS = {
    "sums over many rows": (lambda x: tf.linalg.matmul(x, ROWS, transpose_a=True), ROWS),
    "convolution": (lambda x: tf.nn.conv2d(x, KERNEL, 1, "SAME"), IMAGES),
    "kernel of a convolution": (lambda k: tf.nn.conv2d(IMAGES, k, 1, "SAME"), KERNEL),
    "pooling": (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), IMAGES),
    "rows of a table": (lambda t: tf.gather(t, IDS), TABLE),
}


def gradient_by_jax(step, start):
    return jax.grad(lambda x: (jax.numpy.asarray(step(x)) ** 2).sum())(start)


@pytest.mark.parametrize("name", STEPS)
def test_a_tape_and_jax_take_gradients_through_a_compiled_function(name):
    step, start = STEPS[name]
    x = tf.Variable(start)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.function(step)(x) ** 2)
    by_tape = tf.convert_to_tensor(tape.gradient(loss, x)).numpy()
    expected = gradient_by_jax(step, start)
    for found in (by_tape, gradient_by_jax(rx.function(step), start)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)

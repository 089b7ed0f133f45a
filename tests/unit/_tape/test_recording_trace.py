"""Recorded operations: derivatives of single functions and of random programs equal JAX' own."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from replicax._core.errors import TapeMisuse
from replicax._core.tracing import current_trace
from replicax._tape.recording_trace import RecordingTrace, _kept, recorded
from replicax._tape.tape_entries import TapeEntries

X = jnp.array([0.3, -1.2, 2.5, 0.9], jnp.float32)


def derivatives(fn, *inputs):
    """The value of a scalar function and its gradients, by a recording; 0 where there is none."""
    log = TapeEntries()
    with recorded(log):
        log.recording = True
        for x in inputs:
            log.watch(x)
        value = fn(*inputs)
        log.recording = False
    found = log.backward([(value, jnp.ones_like(value))], inputs)
    return value, [found.get(id(x), jnp.zeros_like(x)) for x in inputs]


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, x), lambda x, g: (jnp.clip(g * x, -1, 1),))


@jax.custom_jvp
def tripled(x):
    return x * 2


tripled.defjvp(lambda x, t: (x[0] * 2, t[0] * 3))


def odd_even(x):
    return lax.cond(x[0] > 0, lambda x: jnp.sin(x), lambda x: x**3, x)


def looped(x):
    return lax.fori_loop(0, 3, lambda i, y: y * x + i, x)


def scanned(x):
    return lax.scan(lambda c, r: (jnp.tanh(c * x) + r, c), x, jnp.stack([x, 2 * x, x]))


def in_psd(x):
    return jnp.outer(x, x) + 4 * jnp.eye(4)


def ignoring(x):
    """A loop without a derivative, of which nothing depends."""
    steps = lax.while_loop(lambda y: jnp.sum(y) < 9, lambda y: y + 1 + 0 * x[0], x)
    return jnp.sum(x**2), steps


FUNCTIONS = {
    "arithmetic": lambda x: (x * 3 - x / (2 + x**2)) ** 2,
    "a value used twice": lambda x: x * x + x,
    "sort": lambda x: jnp.sort(x) * jnp.arange(4),
    "sort with keys": lambda x: lax.sort((x, x * 2, jnp.arange(4)), num_keys=1)[1],
    "complex abs": lambda x: jnp.abs(x + 1j * x**2),
    "fft": lambda x: jnp.abs(jnp.fft.rfft(x)) ** 2,
    "logsumexp": lambda x: jax.nn.logsumexp(x) + jax.nn.softmax(x)[1],
    "an output twice": lambda x: sum(jax.jit(lambda y: (y * 2, y * 2, y, y))(x)),
    "an input as output": lambda x: jax.jit(lambda y: y)(x) * x,
    "where": lambda x: jnp.where(x > 0, jnp.sqrt(jnp.abs(x)), x**2),
    "clip and max": lambda x: jnp.clip(x, -1, 1) * jnp.max(x) + jnp.minimum(x, 0.5),
    "indexing": lambda x: x[jnp.array([0, 0, 3])] * x.at[1].set(7.0)[:3],
    "cumulative": lambda x: jnp.cumsum(x) * jnp.cumprod(x),
    "top_k": lambda x: lax.top_k(x, 2)[0] * 3,
    "matmul": lambda x: (jnp.outer(x, x) @ x) @ in_psd(x),
    "einsum": lambda x: jnp.einsum("i,ij,j->", x, in_psd(x), x),
    "convolution": lambda x: jnp.convolve(x, x[::-1]),
    "cholesky": lambda x: jnp.linalg.cholesky(in_psd(x)),
    "solve": lambda x: jnp.linalg.solve(in_psd(x), x),
    "conjugate gradients": lambda x: jax.scipy.sparse.linalg.cg(in_psd(x), x)[0],
    "attention": lambda x: jax.nn.dot_product_attention(*[x.reshape(1, 2, 1, 2)] * 3),
    "relu, gelu, swish": lambda x: jax.nn.relu(x) + jax.nn.gelu(x) + jax.nn.swish(x),
    "bfloat16": lambda x: (x.astype(jnp.bfloat16) * 2).astype(jnp.float32),
    "rounding": lambda x: jnp.round(x) * x + jnp.sign(x) + jnp.floor(x),
    "integers": lambda x: x * jnp.argmax(x) + (x > 0).astype(jnp.float32),
    "stop_gradient": lambda x: lax.stop_gradient(x) * x + lax.stop_gradient(x),
    "random": lambda x: x * jax.random.normal(jax.random.key(0), (4,)),
    "what is closed over": lambda x: jax.jit(lambda a: (a * x, a + 1, x[0]))(x * 2)[0] * x,
    "vmap": lambda x: jax.vmap(lambda a: a * x)(x),
    "grad": lambda x: jax.grad(lambda y: jnp.sum(y**3 * x))(x),
    "jvp": lambda x: jax.jvp(jnp.sin, (x,), (x,))[1],
    "cond": odd_even,
    "switch": lambda x: lax.switch(jnp.argmax(x), [jnp.sin, jnp.cos, jnp.exp], x),
    "fori_loop": looped,
    "scan": lambda x: sum(map(jnp.sum, scanned(x))),
    "map": lambda x: lax.map(lambda a: a * x, x),
    "associative scan": lambda x: lax.associative_scan(jnp.multiply, x),
    "checkpoint": lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x),
    "custom_vjp": lambda x: clipped(x * 2),
    "custom_jvp": lambda x: tripled(x * 2),
    "custom rules in a scan": lambda x: lax.scan(lambda c, r: (clipped(c) * r, None), x, x)[0],
    "a loop that does not matter": lambda x: ignoring(x)[0],
    "print": lambda x: jax.debug.callback(lambda y: None, x) or x**2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_jax(name):
    def scalar(x):
        return jnp.sum(FUNCTIONS[name](x))

    def recording(x):
        return derivatives(scalar, x)

    def both(x):
        return recording(x), jax.value_and_grad(scalar)(x)

    compiled, (wanted, expected) = jax.jit(both)(X)
    for value, (gradient,) in (compiled, recording(X)):
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
        np.testing.assert_allclose(gradient, expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_second_derivatives_by_two_recordings(compiled):
    def scalar(x):
        return jnp.sum(jnp.sin(x) * jax.nn.relu(x) + jnp.sort(x) ** 3 + tripled(clipped(x)))

    def slope(x):
        return jnp.sum(derivatives(scalar, x)[1][0] * jnp.arange(4))

    fn = jax.jit(lambda x: derivatives(slope, x)) if compiled else lambda x: derivatives(slope, x)
    expected = jax.grad(lambda x: jnp.sum(jax.grad(scalar)(x) * jnp.arange(4)))(X)
    np.testing.assert_allclose(fn(X)[1][0], expected, rtol=1e-5)


def test_jax_differentiates_and_maps_what_is_recorded():
    def slope(x):
        return jnp.sum(derivatives(lambda x: jnp.sum(jnp.sin(x)), x)[1][0])

    np.testing.assert_allclose(jax.grad(slope)(X), -np.sin(X), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(slope)(X), np.cos(X), rtol=1e-5)
    _, sums = lax.scan(lambda c, x: (c, slope(x)), 0, X)
    np.testing.assert_allclose(sums, np.cos(X), rtol=1e-5)


def test_an_operation_without_a_derivative_is_an_error_only_where_it_counts():
    def host(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def beside(x):
        host(x)
        return jnp.sum(x**2)

    np.testing.assert_allclose(jax.jit(lambda x: derivatives(beside, x)[1][0])(X), 2 * X)
    with pytest.raises(ValueError, match="Pure callbacks do not support JVP"):
        derivatives(lambda x: jnp.sum(host(x)), X)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        derivatives(lambda x: jnp.sum(ignoring(x)[1]), X)


def test_what_an_inner_function_closes_over_is_an_error():
    def nested(x):
        return jnp.sum(jax.jit(lambda a: jax.jit(lambda b: b * x)(a) + x)(jnp.ones(4)))

    def looped(x):
        return jnp.sum(lax.map(lambda a: jax.jit(lambda b: b * x)(a), jnp.ones(2)))

    with pytest.raises(TapeMisuse, match="closes over an array that the t"):
        derivatives(nested, X)
    with pytest.raises(TapeMisuse, match="`scan`: a `jax.jit` inside closes over"):
        derivatives(looped, X)
    np.testing.assert_allclose(jax.jit(lambda x: derivatives(nested, x)[1][0])(X), [2] * 4)


def test_an_error_of_an_operation_is_raised_as_it_is():
    with pytest.raises(TypeError, match="incompatible shapes"):
        derivatives(lambda x: x + jnp.ones(3), X)


def operations(fn, *inputs):
    """How often each operation stands in the program of a function."""
    text = jax.jit(fn).lower(*inputs).as_text()
    return Counter(word for word in text.split() if word.startswith("stablehlo."))


def test_the_program_is_that_of_value_and_grad():
    weights = [jnp.ones((4, 4)), jnp.ones((4, 4)), jnp.ones((4, 2))]

    def loss(*weights):
        x = jnp.ones((3, 4))
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - 1) ** 2)

    tape = operations(lambda *ws: derivatives(loss, *ws), *weights)
    jaxs = operations(jax.value_and_grad(loss, argnums=(0, 1, 2)), *weights)
    # 3 on the way there; back 3 for the weights and 2 for what was between them.
    assert tape["stablehlo.dot_general"] == 8
    assert tape == jaxs


def test_derivatives_of_operations_are_traced_once_for_each_kind():
    traced = []

    def call(x):
        traced.append(x.shape)
        return x * x

    square = jax.jit(call, inline=True)
    _kept.cache_clear()
    for _ in range(3):
        assert derivatives(lambda x: jnp.sum(square(x)), X)[1][0].tolist() == (2 * X).tolist()
    kept = _kept.cache_info()
    assert (kept.misses, kept.hits) == (2, 4)  # square and sum
    # A loop is another each time, and its derivative is not kept.
    jax.jit(lambda x: derivatives(lambda x: scanned(x)[0][0], x))(X)
    jax.jit(lambda x: derivatives(lambda x: scanned(x)[0][0], x))(X)
    kept = _kept.cache_info().misses
    jax.jit(lambda x: derivatives(lambda x: scanned(x)[0][0], x))(X)
    assert _kept.cache_info().misses == kept
    assert len(traced) <= 2


def test_nothing_is_recorded_of_what_does_not_depend_on_what_is_watched():
    log = TapeEntries()
    with recorded(log) as trace:
        log.recording = True
        log.watch(X)
        jnp.sin(jnp.ones(3)) * 2
        jax.nn.relu(jnp.ones(3))
        assert len(log) == 0
        assert current_trace() is trace
        jnp.argmax(X)
        jnp.sin(X)
    assert isinstance(trace, RecordingTrace)
    assert current_trace() is trace.parent


def test_a_recording_knows_whether_it_is_compiled():
    seen = []

    def fn(x):
        with recorded(TapeEntries()) as outer, recorded(TapeEntries()) as inner:
            seen.append((outer.is_eager, inner.is_eager))
        return x

    fn(X)
    jax.jit(fn)(X)
    assert seen == [(True, True), (False, False)]


# Random programs: each step takes two earlier values, of shape (3,) or (2, 3), and makes one.
STEPS = {
    "add": lambda a, b, c: a + b,
    "mul": lambda a, b, c: a * b,
    "div": lambda a, b, c: a / (1.5 + b * b),
    "tanh": lambda a, b, c: jnp.tanh(a) * c,
    "sin": lambda a, b, c: jnp.sin(a - b),
    "exp": lambda a, b, c: jnp.exp(-jnp.abs(a)),
    "relu": lambda a, b, c: jax.nn.relu(a) - b,
    "softmax": lambda a, b, c: jax.nn.softmax(a),
    "sort": lambda a, b, c: jnp.sort(a),
    "maximum": lambda a, b, c: jnp.maximum(a, b),
    "select": lambda a, b, c: jnp.where(a > c, a, b * 2),
    "mean": lambda a, b, c: a - jnp.mean(a, -1, keepdims=True),
    "product": lambda a, b, c: jnp.broadcast_to(jnp.sum(a @ b.T), a.shape) / 9,
    "reverse": lambda a, b, c: a[..., ::-1],
    "gather": lambda a, b, c: jnp.take(a, jnp.array([c, 2 - c, 1]), -1),
    "round": lambda a, b, c: jnp.round(a) * b,
    "count": lambda a, b, c: a * jnp.sum(b > 0),
    "argmax": lambda a, b, c: a + jnp.argmax(b, -1, keepdims=True),
    "stop": lambda a, b, c: lax.stop_gradient(a) * b,
    "stack": lambda a, b, c: jnp.stack([a, b]).mean(0) + a,
    "concatenate": lambda a, b, c: jnp.concatenate([a, b], -1)[..., 1:4],
    "jit": lambda a, b, c: sum(jax.jit(lambda x, y: (x * y, x, x))(a, b)),
    "cond": lambda a, b, c: lax.cond(jnp.sum(a) > c, jnp.sin, lambda x: x * b, a),
    "scan": lambda a, b, c: lax.scan(lambda s, _: (jnp.tanh(s + b), s), a, None, length=2)[0],
    "loop": lambda a, b, c: lax.fori_loop(0, c + 1, lambda i, s: s * 0.5 + a, b),
    "vmap": lambda a, b, c: jax.vmap(lambda x: x * c, out_axes=-1, in_axes=-1)(a),
    "custom_vjp": lambda a, b, c: clipped(a) + b,
    "custom_jvp": lambda a, b, c: tripled(a),
    "checkpoint": lambda a, b, c: jax.checkpoint(lambda x: jnp.cos(x) * b)(a),
}
NUMBER = st.integers(-8, 8).map(lambda n: n / 4 + 0.0625)
STEP = st.tuples(st.sampled_from(sorted(STEPS)), *[st.integers(0, 9)] * 2, st.integers(0, 2))
PROGRAM = st.lists(STEP, min_size=1, max_size=5)


def scalar_program(program, x, y):
    """Run a random program; its last value, summed with a weight for each element."""
    values = [x, y]
    for name, first, second, number in program:
        a, b = values[-1 - first % len(values)], values[-1 - second % len(values)]
        values.append(STEPS[name](a, b, number))
    return jnp.sum(values[-1] * jnp.arange(1, x.size + 1).reshape(x.shape) / x.size)


# 8 times 10 programs, each ten compiled together: compiling is what takes the time.
@pytest.mark.timeout(300)
@settings(max_examples=8)
@given(
    st.lists(PROGRAM, min_size=10, max_size=10),
    st.sampled_from([(3,), (2, 3)]),
    st.lists(NUMBER, min_size=6, max_size=6),
)
def test_derivatives_of_random_programs_are_those_of_jax(programs, shape, numbers):
    size = int(np.prod(shape))
    x = jnp.resize(jnp.array(numbers[:3], jnp.float32), size).reshape(shape)
    y = jnp.resize(jnp.array(numbers[3:], jnp.float32), size).reshape(shape)

    def both(x, y):
        runs = [functools.partial(scalar_program, program) for program in programs]
        recorded = [derivatives(run, x, y) for run in runs]
        return recorded, [jax.value_and_grad(run, argnums=(0, 1))(x, y) for run in runs]

    quickly_compiled = jax.jit(both, compiler_options={"xla_backend_optimization_level": 0})
    for (value, gradients), (wanted, expected) in zip(*quickly_compiled(x, y), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
        for gradient, one in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(gradient, one, rtol=1e-4, atol=1e-4)

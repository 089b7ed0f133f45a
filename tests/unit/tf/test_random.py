"""`tf.random`: distributions, seeds, and numbers that are new at each call and on each replica."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

from helpers import few_strategies, local

N = 40000
STATEFUL = {
    "uniform": lambda **k: tf.random.uniform([N], 2, 4, **k),
    "integers": lambda **k: tf.random.uniform([N], 0, 10, dtype="int32", **k),
    "normal": lambda **k: tf.random.normal([N], 3.0, 2.0, **k),
    "truncated": lambda **k: tf.random.truncated_normal([N], 1.0, 2.0, **k),
    "gamma": lambda **k: tf.random.gamma([N], 2.0, 4.0, **k),
    "poisson": lambda **k: tf.random.poisson([N], 3.0, **k),
    "categorical": lambda **k: tf.random.categorical(np.log([[0.2, 0.8]]), N, **k),
}
# Mean and variance: of the truncated one 4 · 0.7737 (two standard deviations of a unit normal).
MOMENTS = {
    "uniform": (3, 4 / 12),
    "integers": (4.5, 99 / 12),
    "normal": (3, 4),
    "truncated": (1, 4 * 0.7737),
    "gamma": (0.5, 2 / 16),
    "poisson": (3, 3),
    "categorical": (0.8, 0.16),
}


def on_host(draw):
    (drawn,) = rx.data.Dataset.range(1).map(lambda _: draw())
    return drawn


@pytest.mark.parametrize("name", sorted(STATEFUL))
@pytest.mark.parametrize("where", ["device", "pipeline"])
def test_moments(name, where):
    tf.random.set_seed(5)
    draw = STATEFUL[name]
    drawn = draw() if where == "device" else on_host(draw)
    assert isinstance(drawn, jax.Array if where == "device" else np.ndarray)
    mean, variance = MOMENTS[name]
    assert abs(np.mean(drawn) - mean) < 5 * (variance / N) ** 0.5
    assert np.var(np.asarray(drawn, "float64")) == pytest.approx(variance, rel=0.05)


def test_bounds():
    uniform, truncated = STATEFUL["uniform"](), STATEFUL["truncated"]()
    assert uniform.min() >= 2 and uniform.max() < 4
    assert truncated.min() >= -3 and truncated.max() <= 5
    assert set(np.asarray(STATEFUL["integers"]()).tolist()) == set(range(10))
    assert set(on_host(STATEFUL["integers"]).tolist()) == set(range(10))


def test_shapes_and_types():
    assert tf.random.normal((2, 3), dtype="float16").dtype == jnp.float16
    assert tf.random.uniform(np.array([2, 1])).shape == (2, 1)
    assert tf.random.gamma([3], [1.0, 2.0]).shape == (3, 2)
    assert tf.random.poisson([3], [1.0, 2.0]).shape == (3, 2)
    assert tf.random.categorical(jnp.zeros((4, 3)), 5).shape == (4, 5)


def test_integers_want_a_bound():
    with pytest.raises(rx.errors.UsageError, match="`maxval` is missing"):
        tf.random.uniform([2], dtype="int32")


def test_the_global_seed_begins_all_sequences_anew():
    def sequence():
        return [float(tf.random.uniform([], seed=seed)) for seed in (None, 1, None, 1, 2)]

    tf.random.set_seed(3)
    first = sequence()
    assert len(set(first)) == 5
    tf.random.set_seed(3)
    assert sequence() == first
    tf.random.set_seed(4)
    assert not set(sequence()) & set(first)
    keras.utils.set_random_seed(3)
    assert sequence() == first


def test_shuffle_keeps_the_rows():
    rows = np.arange(20).reshape(10, 2)
    for shuffled in (
        tf.random.shuffle(jnp.asarray(rows)),
        on_host(lambda: tf.random.shuffle(rows)),
    ):
        assert not np.array_equal(shuffled, rows)
        assert sorted(map(tuple, np.asarray(shuffled))) == sorted(map(tuple, rows))


def test_a_compiled_function_draws_anew_at_each_call_and_after_a_seed_the_same():
    @rx.function
    def draw():
        return tf.random.normal([3]), tf.random.normal([3], seed=7)

    def sequence():
        return np.concatenate([np.concatenate(draw()) for _ in range(3)]).tolist()

    tf.random.set_seed(1)
    first = sequence()
    assert len(set(first)) == 18
    tf.random.set_seed(1)
    assert sequence() == first
    assert draw.num_traces == 1


def test_every_replica_draws_its_own_numbers(mirrored):

    step = rx.function(lambda: mirrored.run(lambda: tf.random.uniform([4])))
    drawn = [*step().values, *step().values, *mirrored.run(lambda: tf.random.uniform([4])).values]
    assert len(set(np.concatenate(drawn).tolist())) == 24


def test_fit_draws_anew_at_each_step():
    class Noise(keras.layers.Layer):
        def call(self, x):
            return x * 0 + tf.random.normal(x.shape)

    model = keras.Sequential([keras.Input((1,), batch_size=2), Noise()])
    drawn = model.predict(np.zeros((6, 1), "float32"), batch_size=2, verbose=0)
    assert len(set(drawn.ravel().tolist())) == 6


def test_stateless_draws_follow_from_the_seed():
    one = tf.random.stateless_normal([4], seed=[1, 2])
    assert np.array_equal(one, tf.random.stateless_normal([4], seed=(1, 2)))
    assert np.array_equal(
        one, jax.jit(lambda s: tf.random.stateless_normal([4], s))(jnp.array([1, 2]))
    )
    assert not np.array_equal(one, tf.random.stateless_normal([4], seed=[2, 1]))
    assert tf.random.stateless_uniform([2], seed=[-1, 2**40]).shape == (2,)
    host = on_host(lambda: tf.random.stateless_uniform([4], seed=[1, -2], maxval=9, dtype="int32"))
    assert isinstance(host, np.ndarray) and host.dtype == np.int32


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda s: tf.random.stateless_uniform([N], s), 0.5),
        (lambda s: tf.random.stateless_truncated_normal([N], s, 2.0), 2.0),
        (lambda s: tf.random.stateless_parameterized_truncated_normal([N], s, 0, 1, 0, 9), 0.798),
        (lambda s: tf.random.stateless_gamma([N], s, 2.0, 4.0), 0.5),
        (lambda s: tf.random.stateless_poisson([N], s, 3.0), 3.0),
        (lambda s: tf.random.stateless_binomial([N], s, 4, 0.25), 1.0),
        (lambda s: tf.random.stateless_categorical(np.log([[0.2, 0.8]]), N, s), 0.8),
    ],
)
def test_stateless_means(draw, mean):
    assert np.mean(draw([3, 4])) == pytest.approx(mean, abs=0.05)
    assert np.mean(on_host(lambda: draw([3, 4]))) == pytest.approx(mean, abs=0.05)


def test_new_seeds_of_a_seed():
    seeds = tf.random.split([1, 2], 3)
    assert seeds.shape == (3, 2) and len({tuple(row) for row in seeds.tolist()}) == 3
    assert tf.random.fold_in([1, 2], 3).shape == (2,)
    assert not np.array_equal(tf.random.fold_in([1, 2], 3), tf.random.fold_in([1, 2], 4))
    assert on_host(lambda: tf.random.split([1, 2], 3)).shape == (3, 2)
    assert on_host(lambda: tf.random.fold_in([1, 2], 3)).shape == (2,)
    rows = tf.random.experimental.stateless_shuffle(jnp.arange(9), seed=[1, 2])
    assert sorted(rows.tolist()) == list(range(9))


def test_a_generator_has_a_state_of_its_own():
    one, other = (tf.random.Generator.from_seed(1) for _ in range(2))
    first = one.normal([3])
    assert np.array_equal(first, other.normal([3]))
    assert not np.array_equal(first, one.normal([3]))
    other.skip(1)
    assert np.array_equal(one.uniform([2]), other.uniform([2]))
    again = tf.random.Generator.from_state(one.state)
    assert np.array_equal(one.truncated_normal([2]), again.truncated_normal([2]))
    one.reset_from_seed(1)
    assert np.array_equal(first, one.normal([3]))
    assert one.binomial([4], 5, 0.5).shape == (4,)
    assert one.uniform_full_int([4], dtype="uint32").dtype == jnp.uint32


def test_generators_that_are_split_off_differ():
    parts = tf.random.Generator.from_seed(1).split(3)
    assert len({float(part.uniform([])) for part in parts}) == 3
    assert tf.random.Generator.from_seed(1).make_seeds(2).shape == (2, 2)
    a, b = tf.random.Generator.from_non_deterministic_state(), tf.random.Generator()
    assert float(a.uniform([])) != float(b.uniform([]))


def test_a_generator_in_run_draws_for_each_replica(mirrored):
    with mirrored.scope():
        generator = tf.random.Generator.from_seed(1)
    drawn = [mirrored.run(lambda: generator.normal([2])).values for _ in range(2)]
    assert len(set(np.concatenate([np.concatenate(one) for one in drawn]).tolist())) == 8


def two_normals():
    generator = tf.random.Generator.from_seed(1)
    return tf.stack([generator.normal([]), generator.normal([])])


@few_strategies
@pytest.mark.parametrize("compiled", [False, True])
def test_a_generator_of_each_call_repeats_its_numbers_and_replicas_differ(strategy, compiled):
    step = lambda: strategy.run(two_normals)  # noqa: E731
    step = tf.function(step) if compiled else step
    first, second = (np.stack(local(strategy, step())) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first)) == 2 * strategy.num_replicas_in_sync
    np.testing.assert_array_equal(first[0], two_normals())


def test_a_generator_of_each_call_in_loops_and_branches():
    @tf.function
    def draw(x):
        generator, other = tf.random.Generator.from_seed(1), tf.zeros([])
        drawn = tf.TensorArray(tf.float32, 2)
        for i in tf.range(2):
            drawn = drawn.write(i, generator.normal([]))
        if x > 0:
            other = tf.random.Generator.from_seed(1).normal([])
        return drawn.stack(), other

    expected = two_normals()
    for _ in range(2):
        drawn, other = draw(tf.constant(1.0))
        np.testing.assert_array_equal(drawn, expected)
        assert other == expected[0]


def test_generators_that_are_split_off_in_each_call():
    outer, expected = (tf.random.Generator.from_seed(1) for _ in range(2))
    split = tf.function(lambda: tf.stack([one.normal([]) for one in outer.split(2)]))
    for _ in range(2):
        drawn = [one.normal([]) for one in expected.split(2)]
        np.testing.assert_array_equal(split(), drawn)


class Kept:
    def __init__(self, make):
        self.generator, self._make = None, make

    def __call__(self):
        if self.generator is None:
            self.generator = self._make()
        return self.generator.normal([])


@few_strategies
def test_a_generator_that_is_kept_goes_on(strategy):
    kept, expected = Kept(lambda: tf.random.Generator.from_seed(1)), two_normals()
    for number in expected:
        assert local(strategy, strategy.run(kept))[0] == number
    assert kept.generator.state.numpy()[1] == 2


def test_nobody_knows_the_numbers_of_a_generator_without_a_seed():
    kept = [Kept(tf.random.Generator.from_non_deterministic_state) for _ in range(2)]
    draws = [tf.function(lambda: tf.random.Generator().normal([])), *map(tf.function, kept)]
    assert len({float(draw()) for draw in draws for _ in range(2)}) == 6


def test_the_global_generator():
    mine = tf.random.Generator.from_seed(2)
    tf.random.set_global_generator(mine)
    assert tf.random.get_global_generator() is mine is tf.random.experimental.get_global_generator()

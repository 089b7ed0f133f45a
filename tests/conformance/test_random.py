"""Random numbers inside `run`: one stream per replica, reproducible, one stored state."""

import keras
import numpy as np
import pytest

import replicax.tf as tf

from helpers import (
    assert_trees_close,
    batch_of,
    few_strategies,
    local,
    several_replicas,
    two_replicas,
)

SHAPE = (64,)


def generator(strategy, seed=5):
    with strategy.scope():
        return keras.random.SeedGenerator(seed)


def uniform(seeds):
    return keras.random.uniform(SHAPE, seed=seeds)


def drawn(strategy, seeds):
    return local(strategy, strategy.run(uniform, args=(seeds,)))


def all_different(arrays):
    return len({array.tobytes() for array in arrays}) == len(arrays)


@few_strategies
def test_the_stream_begins_again_with_the_seed(strategy):
    first = drawn(strategy, generator(strategy))
    seeds = generator(strategy, seed=6)
    other = drawn(strategy, seeds)
    seeds.state.assign(generator(strategy).state.value)
    assert_trees_close(drawn(strategy, seeds), first)
    assert all_different([*first, *other])


@few_strategies
def test_a_fixed_seed_gives_every_replica_the_same(strategy):
    result = strategy.run(lambda: keras.random.uniform(SHAPE, seed=3))
    expected = np.asarray(keras.random.uniform(SHAPE, seed=3))
    assert_trees_close(local(strategy, result), [expected] * strategy.num_replicas_in_sync)


@pytest.mark.parametrize("strategy", ["default", "mirrored_3"], indirect=True)
def test_two_strategies_may_draw_in_turn(strategy, mirrored):
    mine, theirs = generator(strategy), generator(mirrored)
    start = np.asarray(mine.state.value)
    draws = [*drawn(strategy, mine), *drawn(strategy, mine)]
    mine.state.assign(start)
    first = drawn(strategy, mine)
    drawn(mirrored, theirs)
    assert_trees_close([*first, *drawn(strategy, mine)], draws)


DRAWING = {
    "dropout": lambda image: tf.nn.dropout(image, 0.5),
    "normal": lambda image: tf.random.normal(image.shape),
    "shuffle": lambda image: tf.random.shuffle(image),
    "flip": lambda image: tf.image.random_flip_left_right(tf.stack([image] * 16)),
    "crop": lambda image: tf.stack([tf.image.random_crop(image, [3, 3, 3]) for _ in range(8)]),
    "brightness": lambda image: tf.image.random_brightness(image, 0.5),
    "hue": lambda image: tf.image.random_hue(image, 0.5),
}


@two_replicas
@pytest.mark.parametrize("name", DRAWING)
def test_functions_of_tensorflow_draw_other_numbers_on_each_replica(strategy, name):
    image = np.linspace(0, 1, 8 * 8 * 3, dtype="float32").reshape(8, 8, 3)

    def step(image):
        with tf.GradientTape():
            return DRAWING[name](tf.constant(image))

    first, second = local(strategy, strategy.run(step, args=(image,)))
    assert not np.array_equal(first, second)


@few_strategies
def test_dropout_keeps_its_share(strategy):
    with strategy.scope():
        dropout = keras.layers.Dropout(0.25, seed=1)
    ones = batch_of(strategy, np.ones((24, 500), "float32"))
    result = strategy.run(lambda x: dropout(x, training=True), args=(ones,))
    values = np.asarray(strategy.gather(result, axis=0))
    assert_trees_close(np.unique(values), np.array([0.0, 1 / 0.75]))
    # 12,000 draws: the standard deviation of the share is 0.004.
    assert abs((values == 0).mean() - 0.25) < 0.02


@several_replicas
def test_replicas_of_an_uneven_batch_have_their_own_streams(strategy):
    with strategy.scope():
        dropout = keras.layers.Dropout(0.5, seed=1)
    rows = np.ones((2 * strategy.num_replicas_in_sync + 1, 64), "float32")
    result = strategy.run(lambda x: dropout(x, training=True)[:1], (batch_of(strategy, rows),))
    masks = [part for part in local(strategy, result) if len(part)]
    assert all_different(masks)

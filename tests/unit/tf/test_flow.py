"""Control flow on values of compiled code, with Keras variables read and written in it."""

import logging

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax.tf import (
    TensorArray,
    cond,
    foldl,
    foldr,
    map_fn,
    scan,
    switch_case,
    vectorized_map,
    while_loop,
)

from helpers import batch_of, few_strategies, local

ways = pytest.mark.parametrize("way", [rx.function, lambda fn: fn], ids=["compiled", "python"])


@ways
def test_a_branch_writes_a_variable_if_it_is_taken(way):
    v, w = keras.Variable(1.0), keras.Variable(10.0)

    @way
    def step(x):
        def up():
            v.assign_add(x)
            return v + w

        def down():
            w.assign(w * 2.0)
            return w - 0.0

        return cond(x > 0, up, down)

    assert float(step(jnp.float32(2.0))) == 13.0
    assert (float(v.value), float(w.value)) == (3.0, 10.0)
    assert float(step(jnp.float32(-2.0))) == 20.0
    assert (float(v.value), float(w.value)) == (3.0, 20.0)


def test_branches_of_other_number_types_meet():
    fn = rx.function(lambda x: cond(x > 0, lambda: 1, lambda: jnp.float32(0.5)))
    assert [float(fn(jnp.float32(x))) for x in (1, -1)] == [1.0, 0.5]
    assert fn(jnp.float32(1)).dtype == jnp.float32


def test_branches_may_return_nothing_and_nest():
    v = keras.Variable(0, dtype="int32")

    def bump(by):
        v.assign_add(by)

    @rx.function
    def step(x):
        cond(x > 0, lambda: cond(x > 10, lambda: bump(100), lambda: bump(10)), lambda: None)

    for x, total in ((5, 10), (50, 110), (-1, 110)):
        step(jnp.int32(x))
        assert int(v.value) == total


def test_branches_of_other_structures_are_refused():
    with pytest.raises(rx.errors.UsageError, match="different structures"):
        rx.function(lambda x: cond(x > 0, lambda: (x, x), lambda: x))(jnp.float32(1))


def test_a_known_predicate_looks_at_one_branch():
    assert cond(True, lambda: "a", lambda: 1 / 0) == "a"
    assert rx.function(lambda: cond(np.bool_(False), lambda: 1 / 0, lambda: "b"))() == "b"
    assert cond(keras.Variable(1.0), lambda: "a", lambda: "b") == "a"


def test_gradients_flow_into_variables_that_branches_read():
    v = keras.Variable(3.0)

    @rx.function
    def step(x):
        return rx.value_and_grad(lambda: cond(x > 0, lambda: v * v, lambda: v * 2.0), [v])()[1][0]

    assert [float(step(jnp.float32(x))) for x in (1, -1)] == [6.0, 2.0]


@few_strategies
def test_branches_in_a_replica(strategy):
    # Rows 0, 1, … of which each replica's sum decides: a metric counts the large ones.
    with strategy.scope():
        count = keras.Variable(0.0, aggregation="sum")

    def replica_fn(rows):
        def large():
            count.assign_add(1.0)
            return rows.sum()

        return cond(rows.sum() > 5, large, lambda: jnp.float32(-1.0))

    x = np.arange(12, dtype="float32")
    replicas = strategy.num_replicas_in_sync
    sums = [part.sum() for part in np.split(x, replicas)]
    result = strategy.run(replica_fn, args=(batch_of(strategy, x),))
    assert [float(v) for v in local(strategy, result)] == [s if s > 5 else -1.0 for s in sums]
    assert float(count.value) == sum(s > 5 for s in sums)


@ways
def test_a_loop_writes_variables(way):
    v = keras.Variable(0.0)

    @way
    def run(limit):
        def body(i, total):
            v.assign_add(1.0)
            return [i + 1, total + v]

        return while_loop(lambda i, total: v < limit, body, [0, 0.0])

    i, total = run(jnp.float32(4.0))
    assert (int(i), float(total), float(v.value)) == (4, 1.0 + 2 + 3 + 4, 4.0)


@pytest.mark.parametrize("most", [2, jnp.int32(2), 10])
@ways
def test_a_loop_has_a_last_round(way, most):
    fn = way(lambda n, most: while_loop(lambda i: i < n, lambda i: [i + 1], (n * 0,), **most))
    (i,) = fn(jnp.int32(5), {"maximum_iterations": most})
    assert int(i) == min(5, int(most))


def test_gradients_flow_through_a_loop_with_a_known_end():
    v = keras.Variable(2.0)

    @rx.function
    def gradient(n):
        def loss():
            one = (jnp.int32(0), jnp.float32(1.0))
            loop = while_loop(
                lambda i, x: i < n, lambda i, x: (i + 1, x * v), one, maximum_iterations=5
            )
            return loop[1]

        return rx.value_and_grad(loss, [v])()[1][0]

    assert float(gradient(jnp.int32(3))) == 3 * 2.0**2


@pytest.mark.parametrize(
    ("body", "told"),
    [(lambda i, j: (i, (j, j)), r"loop_vars\[1\]"), (lambda i, j: (i, j, j), "3 variables")],
)
def test_a_body_that_returns_something_else_is_refused(body, told):
    with pytest.raises(rx.errors.UsageError, match=told):
        rx.function(lambda n: while_loop(lambda i, j: i < n, body, (n, n)))(jnp.int32(1))


@ways
def test_switch(way):
    v = keras.Variable(0.0)
    branches = [lambda: v.assign(1.0), lambda: v.assign(2.0), lambda: v.assign(v * 10.0)]

    def choose(index, default):
        if default:
            switch_case(index, branches, lambda: v.assign(-1.0))
        else:
            switch_case(index, dict(enumerate(branches)))

    fn = way(choose)
    for index, default, expected in (
        (1, False, 2.0),
        (7, False, 20.0),
        (0, True, 1.0),
        (-2, True, -1),
    ):
        fn(jnp.int32(index), default)
        assert float(v.value) == expected


@ways
def test_map_scan_and_fold(way):
    v = keras.Variable(0.0)

    def f(x):
        v.assign_add(1.0)
        return x * v

    x = jnp.float32([1.0, 2.0, 3.0])
    assert way(lambda x: map_fn(f, x, fn_output_signature="float32"))(x).tolist() == [1, 4, 9]
    assert float(v.value) == 3.0
    add = jnp.add
    assert way(lambda x: scan(add, x))(x).tolist() == [1.0, 3.0, 6.0]
    assert way(lambda x: scan(add, x, 10.0))(x).tolist() == [11.0, 13.0, 16.0]
    assert way(lambda x: scan(add, x, reverse=True))(x).tolist() == [6.0, 5.0, 3.0]
    assert float(way(lambda x: foldl(lambda a, b: 2 * a + b, x))(x)) == 11.0
    assert float(way(lambda x: foldr(lambda a, b: 2 * a + b, x))(x)) == 17.0
    assert float(way(lambda x: foldl(lambda a, b: a + b, x, 0))(x)) == 6.0


@ways
def test_all_elements_at_once(way):
    v = keras.Variable(2.0)
    x = jnp.arange(6.0).reshape(3, 2)
    assert way(lambda x: vectorized_map(lambda row: row.sum() * v, x))(x).tolist() == [2, 10, 18]
    with pytest.raises(rx.errors.UsageError, match="tf.map_fn"):
        way(lambda x: vectorized_map(lambda row: v.assign_add(row[0]), x))(x)


@ways
def test_a_layer_made_in_a_mapped_function(way):
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    assert (
        way(lambda x: map_fn(lambda row: layer(row[None])[0], x))(jnp.ones((3, 2))).tolist()
        == [[2.0]] * 3
    )
    assert not isinstance(layer.kernel.value, jax.core.Tracer)


@ways
def test_arrays_written_in_a_loop(way):
    def squares(n):
        def body(i, array):
            return i + 1, array.write(i, jnp.float32(i * i) * jnp.ones(2))

        return while_loop(lambda i, array: i < n, body, (jnp.int32(0), TensorArray("float32", 4)))

    count, array = way(squares)(jnp.int32(3))
    assert int(count) == 3
    assert array.stack()[:, 0].tolist() == [0.0, 1.0, 4.0, 0.0]


def test_an_array_of_elements():
    array = TensorArray("float32", size=2).write(1, [1.0, 2.0])
    assert array.stack().tolist() == [[0.0, 0.0], [1.0, 2.0]]
    assert array.read(1).tolist() == array.gather([1])[0].tolist() == [1.0, 2.0]
    assert array.concat().tolist() == [0.0, 0.0, 1.0, 2.0]
    assert array.scatter([0], [[5.0, 6.0]]).read(0).tolist() == [5.0, 6.0]
    assert (array.size(), array.element_shape, array.dynamic_size) == (2, (2,), False)
    grown = TensorArray("int32", dynamic_size=True).write(0, 4).write(2, 5)
    assert grown.stack().tolist() == [4, 0, 5]
    assert TensorArray("int32").unstack([1, 2, 3]).size() == 3
    with pytest.raises(IndexError, match="Tried to write index 2"):
        array.write(2, [0.0, 0.0])
    with pytest.raises(rx.errors.UsageError, match="array.write"):
        TensorArray("int32", 3).stack()
    with pytest.raises(rx.errors.UsageError, match="`size` of a TensorArray"):
        rx.function(lambda n: TensorArray("int32", n))(jnp.int32(3))


@pytest.mark.parametrize(
    ("arguments", "expected", "dtype"),
    [
        ((3,), [0, 1, 2], "int32"),
        ((1, 7, 3), [1, 4], "int32"),
        ((3, 0, -1), [3, 2, 1], "int32"),
        ((0.0, 1.0, 0.5), [0.0, 0.5], "float32"),
        ((np.int64(2),), [0, 1], "int64"),
        ((jnp.int32(2),), [0, 1], "int32"),
    ],
)
def test_a_range_is_an_array(arguments, expected, dtype):
    found = tf.range(*arguments)
    assert found.tolist() == expected
    assert found.dtype == dtype
    assert type(found.numpy()) is np.ndarray
    assert [type(x.numpy()) for x in found] == [np.ndarray] * len(expected)
    assert float(jnp.sum(found * 2)) == 2 * sum(expected)


def test_a_range_of_another_type_and_of_a_variable():
    assert tf.range(3, dtype="float32").dtype == "float32"
    # Counted in 32 bits, where 1 + 1/6 is seven sixths; recorded of TensorFlow.
    assert [len(tf.range(0, 1 + 1 / n, 1 / n)) for n in (6, 9, 49, 54)] == [7, 10, 50, 56]
    assert tf.range(0, 1 + 1 / 6, 1 / 6)[-1] == 1.0 and tf.range(5.0, 1.0, -1.5).tolist() == [
        5,
        3.5,
        2,
    ]
    assert len(tf.range(1.0, 0.0, 0.5)) == 0 and len(tf.range(0.0, 1.0, float("inf"))) == 0
    assert tf.range(keras.Variable(2, dtype="int32")).tolist() == [0, 1]


@few_strategies
def test_the_loop_of_the_tpu_guide(strategy):
    with strategy.scope():
        seen = keras.Variable(0.0, aggregation="sum")
    traced = []

    @tf.function
    def train_multiple_steps(iterator, steps):
        def step_fn(rows):
            traced.append(1)
            seen.assign_add(rows.sum())

        for _ in tf.range(steps):
            strategy.run(step_fn, args=(next(iterator),))

    batches = rx.data.Dataset.range(64).batch(4, drop_remainder=True)
    batches = batches.map(lambda rows: rows.astype("float32"))
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    for steps in (jnp.int32(3), np.int32(3), tf.range(4)[3]):
        train_multiple_steps(iterator, steps)
    assert float(seen.value) == sum(range(36))
    first = len(traced)
    train_multiple_steps(iterator, 7)
    assert len(traced) == first
    assert float(seen.value) == sum(range(64))


def test_optionals_of_the_input_tutorial(mirrored):
    @tf.function
    def train_fn(iterator):
        total = 0.0
        for _ in tf.range(100):
            optional = iterator.get_next_as_optional()
            if not optional.has_value():
                break
            parts = mirrored.run(lambda rows: rows.sum(), args=(optional.get_value(),))
            total += mirrored.reduce("SUM", parts, axis=None)
        return total

    dataset = rx.data.Dataset.range(10).batch(4)
    assert int(train_fn(iter(mirrored.experimental_distribute_dataset(dataset)))) == 45


def test_a_short_range_is_written_out_and_a_long_one_is_a_loop_of_the_program(caplog, mirrored):
    def power(x, rounds):
        for _ in tf.range(rounds):
            x = x * 2
        return x

    as_it_is = tf.function(power, autograph=False)
    with caplog.at_level(logging.INFO, "replicax"):
        assert float(tf.function(power)(jnp.float32(1), 3)) == 8.0
        assert float(tf.function(power)(jnp.float32(1), 17)) == 2.0**17
        assert float(as_it_is(jnp.float32(1), 3)) == 8.0
        assert not caplog.records
        assert float(as_it_is(jnp.float32(1), 17)) == 2.0**17
    assert "loops over a `tf.range` of 17" in caplog.text
    found = mirrored.run(power, args=(jnp.float32(1), 17))
    assert [float(one) for one in local(mirrored, found)] == [2.0**17] * 2
    with pytest.raises(rx.errors.UsageError, match="cannot read data"):
        mirrored.run(lambda x: as_it_is(x, 17), args=(jnp.float32(1),))


def test_a_range_of_traced_size_is_an_array_in_plain_python_only(mirrored):
    def doubled(n):
        return jnp.asarray(tf.range(n)) * 2

    assert tf.function(doubled)(jnp.int32(3)).tolist() == [0, 2, 4]
    with pytest.raises(rx.errors.LeakedTracer, match="tf.while_loop"):
        mirrored.run(doubled, args=(jnp.int32(3),))


def test_cases():
    fn = tf.function(
        lambda x: tf.case([(x > 10, lambda: x * 0), (x > 5, lambda: x * 10)], default=lambda: -x)
    )
    assert [int(fn(jnp.int32(x))) for x in (11, 6, 1)] == [0, 60, -1]
    last = tf.function(lambda x: tf.case([(x > 10, lambda: 1), (x > 5, lambda: 2)]))
    assert int(last(jnp.int32(1))) == 2
    with pytest.raises(rx.errors.UsageError, match="no branches"):
        tf.case([])


def test_a_function_that_asks_for_values_is_called_for_each_element():
    x, scale = tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.Variable(2.0)
    mask = tf.constant([[True, False], [True, True]])

    def largest(pair):
        return tf.reduce_sum(tf.boolean_mask(*pair))

    with tf.GradientTape() as tape:
        sums = tf.map_fn(largest, (x * scale, mask), fn_output_signature=tf.float32)
        total = tf.reduce_sum(sums)
    assert sums.numpy().tolist() == [2.0, 14.0]
    assert float(tape.gradient(total, scale)) == 8.0


@pytest.mark.parametrize(
    ("fold", "expected"), [(tf.foldl, 3.5), (tf.foldr, 1.25)], ids=["foldl", "foldr"]
)
def test_a_fold_may_ask_for_values(fold, expected):
    def halved(total, number):
        return tf.constant(float(total.numpy()) / 2 + float(number.numpy()))

    assert float(fold(halved, tf.constant([0.0, 1.0, 3.0]), tf.constant(0.0))) == expected


def test_replicas_still_refuse_it(mirrored):
    def compiled(x):
        return tf.map_fn(lambda row: tf.reduce_sum(tf.boolean_mask(row, row > 0)), x)

    assert tf.function(compiled)(tf.ones([2, 2])).tolist() == [2, 2]
    with pytest.raises(rx.errors.UsageError):
        mirrored.run(compiled, args=(tf.ones([2, 2]),))


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_map_fn_maps_texts_on_the_host(wrap):
    encoded = tf.stack([tf.io.encode_png(np.full((1, 2, 1), n, "uint8")) for n in (7, 9)])

    def decode(element):
        return tf.io.decode_png(element[0], channels=1)[0, :, 0], element[1] * 2

    def decoded(texts, numbers):
        return tf.map_fn(decode, (texts, numbers), fn_output_signature=(tf.uint8, tf.int32))

    images, numbers = wrap(decoded)(encoded, tf.constant([1, 2]))
    np.testing.assert_array_equal(images, [[7, 7], [9, 9]])
    np.testing.assert_array_equal(numbers, [2, 4])
    rows = tf.data.Dataset.from_tensors((encoded, [1, 2])).map(wrap(decoded))
    np.testing.assert_array_equal(next(iter(rows))[0], [[7, 7], [9, 9]])


@pytest.mark.parametrize("texts", [[], ["a", "bc"]], ids=["empty", "two"])
def test_loops_over_texts_of_any_number(texts):
    texts = tf.constant(np.array(texts, str), tf.string)
    lengths, twice = tf.map_fn(
        lambda text: (tf.strings.length(text), tf.strings.join([text, text])),
        texts,
        fn_output_signature=(tf.int32, tf.string),
    )
    assert lengths.tolist() == [1, 2][: len(texts)]
    assert twice.numpy().tolist() == [b"aa", b"bcbc"][: len(texts)]
    assert twice.dtype == tf.string

    def joined(before, text):
        return tf.strings.join([before, text])

    begin = tf.constant("x")
    last = tf.foldl(joined, texts, initializer=begin)
    assert last.numpy() == (b"xabc" if len(texts) else b"x")
    states = tf.scan(joined, texts, initializer=begin)
    assert states.numpy().tolist() == [b"xa", b"xabc"][: len(texts)]


def test_no_rows_have_the_shape_of_a_row():
    assert tf.map_fn(tf.strings.as_string, tf.zeros((0, 3), tf.int32)).shape == (0, 3)
    assert tf.vectorized_map(lambda row: row * 2, tf.zeros((0, 3))).shape == (0, 3)


def test_scan_begins_with_the_first_text():
    states = tf.scan(lambda before, text: tf.strings.join([before, text]), tf.constant(["a", "b"]))
    assert states.numpy().tolist() == [b"a", b"ab"]

"""Python's control flow on arrays of compiled code; all expected numbers are by hand."""

import ast
import contextlib
import functools
import linecache
import sys
import traceback

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

from helpers import local, run_python

OFFSET = 10.0


def clip(x):
    if x > 1:
        y = x * 0 + 1
    elif x < -1:
        y = x * 0 - 1
    else:
        y = x
    return y


def early(x):
    if x > 10:
        return x - 10.0
    x = x + 1.0
    if x > 5:
        return x * 2.0
    return x


def countdown(x):
    rounds = 0
    while x > 1.0:
        x = x / 2.0
        rounds += 1
    return rounds


def odd_sum(x):
    total = 0
    for i in tf.range(tf.cast(x, tf.int32)):
        if i % 2 == 0:
            continue
        if i > 6:
            break
        total += i
    return total


def first_above(x):
    for i in tf.range(100):
        if tf.cast(i * i, tf.float32) > x:
            return i
    return -1


def both(x):
    return 1 if x > 0 and not x > 5 or x < -5 else 0


def nested(x):
    total = 0.0
    while x > 0:
        for i in tf.range(tf.cast(x, tf.int32)):
            if tf.cast(i, tf.float32) + x > 3:
                total += 1.0
        x = x - 1.0
    return total


def made_in_a_loop(x):
    i = 0
    while i < tf.cast(x, tf.int32):
        last = 3 * i
        i += 1
    return last


def structures(x):
    pair, table, nothing = (0, x), {"a": [x, 1.0]}, None
    for i in tf.range(tf.cast(x, tf.int32)):
        pair = (pair[0] + i, pair[1] * 2.0)
        table["a"] = [table["a"][0] + 1.0, table["a"][1] * 2.0]
    assert nothing is None
    return pair[0] + pair[1] + table["a"][0] + table["a"][1]


def in_its_own_frame(x):
    y = x * 2.0
    z = y if x > 0 else x
    return z + eval("y") + locals()["x"] + globals()["OFFSET"]


def helper_alone(x):
    return OFFSET + clip(x)  # nothing is decided here, but in what it calls


def by_a_nested_function(x):
    calls = 0

    def add(y):
        nonlocal calls
        calls += 1
        if y > 0:
            return y + calls
        return y - calls

    return add(x) + add(x)


def defaulted(x, low=0.0, *, high=3.0):
    if x < low:
        return low
    return min(x, high)


def times(factor):
    def decorate(fn):
        @functools.wraps(fn)
        def call(x):
            if x > 100:
                return fn(x) * 0.0
            return fn(x) * factor

        return call

    return decorate


@times(3.0)
def decorated(x):
    if x > 0:
        return x
    return -x


class Base:
    def __init__(self):
        self.limit, self.last = 2.0, None

    def step(self, x):
        if x > self.limit:
            return self.limit
        return x


class Derived(Base):
    def step(self, x):
        if x < 0:
            return super().step(-x)
        return super().step(x) + 100.0

    def __call__(self, x):
        return self.step(x)


def of_an_object(x):
    return Derived()(x)


def by_the_rows(x):
    total = 0.0
    for row in jnp.ones(20) * x:
        if row > 0:
            total += row
    return total


def returns_within_a_with(x):
    with tf.name_scope("scope"):
        if x > 0:
            return x
        y = x * 2.0
    return y + 0.0


def skips_an_assignment(x):
    total = 0.0
    for i in tf.range(tf.cast(x, tf.int32)):
        if i > 1:
            if i == 3:
                continue
            y = 1.0
        else:
            y = 2.0
        total += y
    return total


def builtins_on_arrays(x):
    return int(x) + float(x) + max(x, 2.0) + min(x, 2.0)


def up_to_an_array(x):
    total = 0
    for i in range(2, int(x), 3):
        total += i
    return total


def writes_an_array(x):
    array = tf.TensorArray(tf.float32, size=20)
    for i in tf.range(20):
        if tf.cast(i, tf.float32) < x:
            array = array.write(i, x)
    return tf.reduce_sum(array.stack())


def keeps_the_best(x):
    best = None
    for i in tf.range(20):
        value = tf.cast(i, tf.float32) * x
        if best is None or value > best:
            best = value
    return best


def a_python_loop_that_breaks(x):
    found = 0
    for number, limit in enumerate([1.0, 4.0, 9.0]):
        if x < limit:
            break
        found = number + 1
    return found


def over_a_map(x):
    return tf.reduce_sum(tf.map_fn(clip, jnp.stack([x, -x, x * 0.0 + 0.25])))


CASES = [
    (over_a_map, 3.0, 0.25),
    (returns_within_a_with, 1.0, 1.0),
    (returns_within_a_with, -1.0, -2.0),
    (skips_an_assignment, 5.0, 2.0 + 2.0 + 1.0 + 1.0),
    (builtins_on_arrays, 3.5, 3.0 + 3.5 + 3.5 + 2.0),
    (up_to_an_array, 9.0, 2 + 5 + 8),
    (writes_an_array, 4.0, 16.0),
    (keeps_the_best, 2.0, 38.0),
    (a_python_loop_that_breaks, 5.0, 2),
    (a_python_loop_that_breaks, 50.0, 3),
    (clip, 3.0, 1.0),
    (clip, -3.0, -1.0),
    (clip, 0.5, 0.5),
    (early, 12.0, 2.0),
    (early, 7.0, 16.0),
    (early, 1.0, 2.0),
    (countdown, 8.0, 3),
    (countdown, 0.5, 0),
    (odd_sum, 4.0, 1 + 3),
    (odd_sum, 50.0, 1 + 3 + 5),
    (odd_sum, 0.0, 0),
    (first_above, 15.5, 4),
    (first_above, 1e6, -1),
    (both, 3.0, 1),
    (both, 6.0, 0),
    (both, -6.0, 1),
    (nested, 3.0, 2.0),
    (made_in_a_loop, 4.0, 9),
    (structures, 3.0, 3 + 24.0 + 6.0 + 8.0),
    (helper_alone, 3.0, 11.0),
    (in_its_own_frame, 1.0, 2.0 + 2.0 + 1.0 + 10.0),
    (by_a_nested_function, 2.0, 3.0 + 4.0),
    (defaulted, -1.0, 0.0),
    (defaulted, 5.0, 3.0),
    (decorated, -2.0, 6.0),
    (decorated, 200.0, 0.0),
    (of_an_object, -1.0, 1.0),
    (of_an_object, 5.0, 102.0),
    (by_the_rows, 2.0, 40.0),
    (by_the_rows, -2.0, 0.0),
]


def in_function(fn, x):
    return tf.function(fn)(jnp.float32(x))


def in_run(fn, x):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    value = strategy.experimental_distribute_values_from_function(lambda context: np.float32(x))
    one, two = local(strategy, strategy.run(fn, args=(value,)))
    assert float(one) == float(two)
    return one


def in_train_step(fn, x):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, rows):
            if rows.sum() > 1e9:
                rows = rows * 0.0
            return self.dense(rows)

        def train_step(self, state, data):
            logs, state = super().train_step(state, data)
            return {**logs, "found": fn(data[0][0, 0])}, state

    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = Model()
        model.compile("sgd", "mse")
    rows = np.full((4, 1), x, "float32")
    return model.fit(rows, rows, batch_size=4, verbose=0).history["found"][0]


def in_closure(fn, x):
    strategy = rx.ParameterServerStrategy(engine="threads", num_workers=1, num_ps=1)
    try:
        with strategy.scope():
            seen = keras.Variable(0.0)

        @tf.function
        def step(x):
            found = fn(x)
            if x > 0:
                seen.assign_add(1.0)
            return found

        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        result = coordinator.schedule(step, args=(np.float32(x),)).fetch()
        coordinator.join()
        assert float(seen.numpy()) == (1.0 if x > 0 else 0.0)
        return result
    finally:
        strategy.close()


@pytest.mark.parametrize(("fn", "x", "expected"), CASES)
def test_control_flow_in_a_function(fn, x, expected):
    assert float(in_function(fn, x)) == expected


ELSEWHERE = [case for case in CASES if case[0] in (early, odd_sum, nested, of_an_object)][::2]


@pytest.mark.parametrize("way", [in_run, in_train_step, in_closure])
@pytest.mark.parametrize(("fn", "x", "expected"), ELSEWHERE)
def test_control_flow_elsewhere(way, fn, x, expected):
    assert float(np.asarray(way(fn, x))) == expected


class Doubled(keras.layers.Layer):
    def call(self, x):
        if tf.reduce_sum(x) > 0:
            return x * 2.0
        return x


def huber(y, predicted):
    error = tf.abs(y - predicted)
    if tf.reduce_mean(error) < 1.0:
        return 0.5 * error**2
    return error - 0.5


@pytest.mark.parametrize("devices", [0, 2])
def test_layers_losses_and_metrics_of_the_user(devices):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(devices)]) if devices else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        inputs = keras.Input((1,))
        model = keras.Model(inputs, Doubled()(inputs))
        model.compile("sgd", huber, metrics=[huber])
    rows = np.ones((4, 1), "float32")
    assert model.predict(rows, verbose=0).tolist() == [[2.0]] * 4
    assert model.evaluate(rows, rows * 5.0, verbose=0) == [2.5, 2.5]
    assert model.fit(rows, rows * 1.5, verbose=0).history["loss"] == [0.125]
    assert model.loss is huber
    assert "call" not in vars(model.layers[-1])


def test_depth_costs_a_trace_for_each_level():
    traced = []

    def deep(x):
        if x < 1:
            x = x * 0.0
        elif x < 2:
            x = x * 1.0
        elif x < 3:
            x = x * 2.0
        elif x < 4:
            x = x * 3.0
        elif x < 5:
            x = x * 4.0
        elif x < 6:
            x = x * 5.0
        else:
            traced.append(x)
            x = x * 6.0
        return x

    assert float(in_function(deep, 7.0)) == 42.0
    assert len(traced) <= 7  # twice at each depth would be 64


def test_what_jax_keeps_was_traced_for_good():
    layer = Doubled()
    compiled = jax.jit(lambda x: layer(x))

    def step(x):
        if x > 0:
            if x > 1:
                return compiled(x)
            return compiled(x) + 1.0
        return compiled(x) - 1.0

    assert [float(in_function(step, x)) for x in (2.0, 0.5, -3.0)] == [4.0, 2.0, -4.0]


def test_variables_are_written_by_the_branch_that_is_taken():
    v = keras.Variable(1.0)

    @tf.function
    def step(x):
        if x > 0:
            v.assign_add(x)
        else:
            v.assign(0.0)
        while v < 10.0:
            v.assign(v * 2.0)
        return v + 0.0

    assert float(step(jnp.float32(2.0))) == 12.0
    assert float(v.value) == 12.0
    assert step.num_traces == 1


def test_attributes_are_variables_of_branches_and_loops():
    class Counter:
        def __init__(self):
            self.count = 0.0

        def run(self, x):
            self.count = x * 0.0
            for _ in tf.range(30):
                if x > 0:
                    self.count = self.count + 2.0
            return self.count

    assert float(tf.function(Counter().run)(jnp.float32(1.0))) == 60.0


def test_gradients_flow_through_branches_and_bounded_loops():
    v = keras.Variable(3.0)

    @tf.function
    def step(n):
        with tf.GradientTape() as tape:
            y = v * 1.0
            for i in tf.range(20):
                if i < n:
                    y = y * v
        return tape.gradient(y, v)

    assert float(step(jnp.int32(2))) == 27.0  # of v ** 3

    @tf.function
    def bounded(n):
        with tf.GradientTape() as tape:
            y, i = v * 1.0, 0
            while i < n:
                tf.autograph.experimental.set_loop_options(maximum_iterations=5)
                y, i = y * v, i + 1
        return tape.gradient(y, v), i

    assert [float(each) for each in bounded(jnp.int32(2))] == [27.0, 2.0]
    assert int(bounded(jnp.int32(9))[1]) == 5

    @tf.function
    def unbounded(n):
        with tf.GradientTape() as tape:
            y = v * 1.0
            for _ in tf.range(n):
                y = y * v
        return tape.gradient(y, v)

    with pytest.raises(rx.errors.UsageError, match="set_loop_options"):
        unbounded(jnp.int32(2))


def test_python_decides_what_python_can():
    looked = []

    @tf.function
    def step(x, training):
        nonlocal looked
        if training:
            looked.append(1)
        else:
            raise AssertionError
        for name in ["a", "b"]:
            looked += [name * 2]
        return x if training and looked else None

    assert float(step(jnp.float32(1.0), True)) == 1.0
    assert looked == [1, "aa", "bb"]


def test_a_loop_over_data_stays_a_loop_of_python():
    @tf.function
    def total(data):
        found = tf.constant(0.0)
        for x in data:
            if x > 2:
                break
            found += x
        return found

    data = tf.data.Dataset.from_tensor_slices(np.arange(5.0, dtype="float32"))
    assert float(total(data)) == 3.0


def test_steps_of_an_iterator_in_a_range(mirrored):
    batches = tf.data.Dataset.from_tensor_slices(np.arange(40.0, dtype="float32")).batch(2)
    iterator = iter(mirrored.experimental_distribute_dataset(batches))
    with mirrored.scope():
        seen = keras.Variable(0.0, aggregation="sum")

    def step(x):
        if x.sum() > 0:
            seen.assign_add(x.sum())

    @tf.function
    def steps(iterator, count):
        for _ in tf.range(count):
            mirrored.run(step, args=(next(iterator),))

    steps(iterator, tf.constant(3))
    assert float(seen.value) == 15.0
    steps(iterator, tf.constant(17))
    assert float(seen.value) == 780.0


def test_a_run_in_a_branch_and_a_long_loop(mirrored):
    with mirrored.scope():
        v = keras.Variable(0.0, aggregation="sum")

    @tf.function
    def steps(x):
        if x > 0:
            mirrored.run(lambda: v.assign_add(1.0))
        for _ in tf.range(20):
            mirrored.run(lambda: v.assign_add(1.0))

    steps(jnp.float32(1.0))
    assert float(v.value) == 42.0


def shapes_differ(x):
    if x > 0:  # noqa: SIM108
        row = jnp.zeros(2)
    else:
        row = jnp.zeros(3)
    return row


def types_differ(x):
    if x > 0:  # noqa: SIM108
        row = jnp.zeros(2)
    else:
        row = jnp.zeros(2, "int32")
    return row


def grows(x):
    row = jnp.zeros(1)
    while row.sum() < x:
        row = jnp.concatenate([row, row + 1])
    return row


def lengthens(x):
    rows, i = [], 0
    while i < x:
        rows = [*rows, i]
        i += 1
    return rows


def renames(x):
    name = "a"
    if x > 0:
        name = "b"
    return name


def one_branch(x):
    if x > 0:
        row = x
    return row


def no_return(x):  # noqa: RET503
    if x > 0:
        return x


@pytest.mark.parametrize(
    ("fn", "named"),
    [
        (shapes_differ, r"'row' at test_autograph.py:\d+, `if x > 0:.*\[2\].*\[3\]"),
        (types_differ, r"'row' at test_autograph.py:\d+, `if x > 0:.*float32.*int32"),
        (grows, r"'row' at test_autograph.py:\d+, `while row.sum\(\) < x:`.*\[1\].*\[2\]"),
        (lengthens, r"'rows' at test_autograph.py:\d+, `while i < x:`.* \[\] before .*\['int32"),
        (renames, r"'name' at test_autograph.py:\d+, `if x > 0:`.*'b' in one branch and 'a' in"),
        (one_branch, r"'row' .* at test_autograph.py:\d+, `return row`.*`if x > 0:`"),
        (no_return, r"returned at test_autograph.py:\d+, `if x > 0:`.*None"),
    ],
)
def test_errors_name_the_variable_and_the_line(fn, named):
    with pytest.raises(rx.errors.UsageError, match=named):
        in_function(fn, 1.0)


def fails(x):
    if x > 0:
        x = x + missing  # noqa: F821
    return x


def test_tracebacks_show_the_users_lines():
    with pytest.raises(NameError) as caught:
        in_function(fails, 1.0)
    mine = [f for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == __file__]
    assert [f.line for f in mine[-2:]] == ["if x > 0:", "x = x + missing  # noqa: F821"]
    assert mine[-2].name == "fails"


def asserts(x):
    assert x > 0, f"{OFFSET} is the offset"
    return x


def test_assertions():
    assert float(in_function(asserts, 1.0)) == 1.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="10.0 is the offset"):
        in_function(asserts, -1.0)


def generated(x):
    for k in range(2):
        if x > k:
            yield x


def test_what_cannot_be_converted_runs_as_it_is():
    same = {}
    exec("def unseen(x, flag):\n    if flag:\n        return x\n    return 1 if x > 0 else 2", same)
    unseen = same["unseen"]
    assert float(tf.function(unseen)(jnp.float32(3.0), True)) == 3.0
    with pytest.raises(rx.errors.LeakedTracer, match="not converted.*source"):
        tf.function(unseen)(jnp.float32(3.0), False)
    with pytest.raises(rx.errors.LeakedTracer, match="generators are not converted"):
        tf.function(lambda x: list(generated(x)))(jnp.float32(1.0))


def test_conversion_can_be_declined():
    message = "was not converted: .*`autograph=False`"
    with pytest.raises(rx.errors.LeakedTracer, match=message):
        tf.function(clip, autograph=False)(jnp.float32(1.0))
    kept = tf.autograph.experimental.do_not_convert(clip)
    with pytest.raises(rx.errors.LeakedTracer, match=message):
        tf.function(lambda x: kept(x))(jnp.float32(1.0))

    @tf.function(autograph=False)
    def outer(x):
        return inner(x)

    inner = tf.function(clip)
    assert float(outer(jnp.float32(3.0))) == 1.0


def test_without_tensorflows_names_nothing_is_converted(monkeypatch):
    monkeypatch.setattr("replicax._core.seams.speaks_tensorflow", False)
    with pytest.raises(rx.errors.LeakedTracer, match="`keras.ops.cond`"):
        rx.function(clip)(jnp.float32(1.0))


def test_the_converted_code():
    assert "ag__.if_stmt" in tf.autograph.to_code(clip)
    graph = tf.autograph.to_graph(clip)
    assert [float(graph(x)) for x in (3.0, 0.5)] == [1.0, 0.5]


def test_other_peoples_syntax_trees_stay_as_they_are():
    text = "a = b and not c or d + 1 < e"
    before = ast.dump(ast.parse(text))
    code = (
        "def fn(x):\n    while not x > 1 and x + 1 < 9 or x == 0:\n        x += 1\n    return x\n"
    )
    linecache.cache["<trees>"] = (len(code), None, code.splitlines(keepends=True), "<trees>")
    scope = {}
    exec(compile(code, "<trees>", "exec"), scope)
    assert float(in_function(scope["fn"], 0.0)) == 2.0
    assert ast.dump(ast.parse(text)) == before


def test_a_function_is_converted_once_and_nothing_is_loaded_for_plain_ones():
    run_python(
        """
        import sys
        import replicax.tf as tf

        def plain(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x * x
            return tape.gradient(y, x)

        assert float(tf.function(plain)(tf.constant(3.0))) == 6.0
        assert "malt" not in sys.modules
        """
    )
    fn = tf.function(clip)
    fn(jnp.float32(1.0))
    called = []
    sys.setprofile(lambda frame, event, arg: called.append(frame.f_code.co_filename))
    try:
        fn(jnp.float32(2.0))
    finally:
        sys.setprofile(None)
    assert not any("malt" in name or "/_autograph/" in name for name in called)


def test_a_long_while_on_a_known_tensor_becomes_a_loop_of_the_program():
    rounds = []

    @tf.function
    def count(limit):
        number, total, doubled = tf.constant(0), tf.constant(0.0), 0
        while number < 500:
            rounds.append(number)
            if number == limit:
                break
            total += tf.cast(number, tf.float32)
            number += 1
            doubled += 2
        return total, number, doubled

    total, number, doubled = count(tf.constant(300))
    assert (float(total), int(number), int(doubled)) == (44850.0, 300, 600)
    assert len(rounds) < 150  # traced, not carried out by Python


def test_a_short_while_on_a_known_tensor_has_gradients():
    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, number = x, tf.constant(0)
            while number < 40:
                y, number = y * 1.1, number + 1
        return tape.gradient(y, x)

    np.testing.assert_allclose(slope(tf.constant(2.0)), 1.1**40, rtol=1e-5)


def test_a_loop_whose_condition_does_not_depend_on_it_is_refused():
    left = list(range(150))

    @tf.function
    def take(x):
        while tf.constant(len(left)) > 0:
            x = x + left.pop()
        return x

    with pytest.raises(rx.errors.UsageError):
        take(tf.ones(2))


def test_what_is_saved_and_what_a_graph_shows_is_converted(tmp_path):
    class Halving(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
        def halve(self, x):
            while x > 1.0:
                x = x / 2.0
            return x

    tf.saved_model.save(Halving(), str(tmp_path / "saved"))
    assert float(tf.saved_model.load(str(tmp_path / "saved")).halve(5.0)) == 0.625
    nodes = Halving().halve.get_concrete_function().graph.as_graph_def().node
    assert "while" in {node.op for node in nodes}

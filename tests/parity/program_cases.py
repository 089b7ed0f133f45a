"""Small programs for TensorFlow, run by it and by `replicax.tf`: what they give must be the same.

Each takes the module `tf` and returns numbers, or a nest of them. Two devices form the replicas.
"""

import copy

import numpy as np

CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


def two_replicas(tf):
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def local(strategy, value):
    return [np.asarray(one) for one in strategy.experimental_local_results(value)]


# Constants stay constants.


@case
def constant_sizes_and_branches(tf):
    @tf.function
    def fn(x):
        rows = tf.reshape(x, [tf.math.maximum(2, 1), -1])
        left, right = tf.split(rows, tf.repeat(2, 2), axis=1)
        steps = int(tf.math.ceil(4 / 3))
        if tf.reduce_any(tf.constant([False, True])):
            left = left * tf.cast(tf.shape(x)[0], tf.float32)
        return left, right, steps, tf.zeros([tf.size(x) // 4]), tf.range(tf.rank(x) + 2)

    return fn(tf.range(8.0))


@case
def constants_in_run(tf):
    strategy = two_replicas(tf)

    def step(x):
        halves = tf.split(x, tf.constant([1, 3]), axis=0)
        return halves[1] * float(tf.reduce_prod(tf.constant([2.0, 3.0])))

    return local(strategy, tf.function(lambda: strategy.run(step, args=(tf.range(4.0),)))())


@case
def a_known_tensor_is_not_changed_in_place(tf):
    @tf.function
    def fn(limit):
        first = number = tf.constant(0)
        doubled = 0
        while number < 40:
            if number == limit:
                break
            number += 1
            doubled += 2
        return first, number, doubled

    return fn(tf.constant(17))


@case
def variables_made_in_build(tf):
    class Scale(tf.keras.layers.Layer):
        def build(self, shape):
            self.scale = tf.Variable(tf.fill([int(shape[-1])], 3.0) / tf.sqrt(4.0))

        def call(self, x):
            return x * self.scale

    return tf.keras.Sequential([tf.keras.layers.InputLayer((2,)), Scale()])(tf.ones((2, 2)))


# Control flow on tensors.


@case
def collatz(tf):
    @tf.function
    def steps(n):
        count = 0
        while n != 1:
            if n % 2 == 0:  # noqa: SIM108 - a statement is what is tried
                n = n // 2
            else:
                n = 3 * n + 1
            count += 1
        return count

    return [steps(tf.constant(n)) for n in (1, 7, 27)]


@case
def early_returns_and_logic(tf):
    @tf.function
    def kind(x):
        if x > 10.0 and not x > 100.0:
            return x * 2.0
        if x < 0.0 or x > 1000.0:
            return -x
        return x + (1.0 if x > 5.0 else 0.5)

    return [kind(tf.constant(x)) for x in (50.0, -3.0, 2000.0, 7.0, 1.0)]


@case
def loops_with_break_and_continue(tf):
    @tf.function
    def fn(rows, limit):
        total, seen = tf.constant(0.0), 0
        for row in rows:
            if tf.reduce_sum(row) < 0.0:
                continue
            total += tf.reduce_sum(row)
            seen += 1
            if total > limit:
                break
        return total, seen

    rows = tf.constant(np.arange(60.0).reshape(20, 3) - 9, tf.float32)
    return [fn(rows, tf.constant(limit)) for limit in (10.0, 200.0, 1e6)]


@case
def tensor_arrays_and_ranges(tf):
    @tf.function
    def fn(n):
        squares = tf.TensorArray(tf.float32, size=n)
        for number in tf.range(n):
            squares = squares.write(number, tf.cast(number * number, tf.float32))
        return squares.stack()

    return fn(6)


@case
def gradients_through_control_flow(tf):
    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(20):
                if y > 3.0:  # noqa: SIM108
                    y = y * 0.5
                else:
                    y = y * y + 0.1
        return y, tape.gradient(y, x)

    return [slope(tf.constant(x)) for x in (0.3, 1.7, 5.0)]


@case
def a_loop_over_a_data_set_in_a_function(tf):
    data = tf.data.Dataset.range(10).batch(3)

    @tf.function
    def total():
        found = tf.constant(0, tf.int64)
        for batch in data:
            if tf.reduce_sum(batch) > 5:
                found += tf.reduce_max(batch)
        return found

    return total()


# A value behaves like a tensor wherever it came from.


@case
def shapes_and_types(tf):
    strategy = two_replicas(tf)
    with strategy.scope():
        variable = tf.Variable(np.ones((2, 3), "float32"))
    values = [tf.ones((2, 3)), variable, *strategy.experimental_local_results(
        strategy.run(lambda: tf.ones((2, 3)))
    )]  # fmt: skip
    return [
        (v.shape.as_list(), v.shape.rank, v.shape.ndims, v.get_shape().num_elements(),
         int(v.shape.is_compatible_with([None, 3])), v.numpy())
        for v in values
    ]  # fmt: skip


@case
def numpy_beside_variables(tf):
    variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        weighted = np.array([3.0, 4.0], "float32") * variable
        loss = tf.reduce_sum(np.float32(0.5) * variable + weighted)
    return loss, tape.gradient(loss, variable), np.sqrt(tf.constant([4.0]))


@case
def results_of_replicas_combine(tf):
    strategy = two_replicas(tf)

    def step():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.cast(number, tf.float32) + tf.ones((1, 2))

    results = strategy.experimental_local_results(strategy.run(step))
    return tf.concat(results, 0), tf.stack(results), tf.add_n(results), results[0] + results[1]


@case
def a_function_gives_the_value_of_a_variable(tf):
    variable = tf.Variable(1.0)
    given = tf.function(lambda: [variable, variable.assign_add(1.0)])()
    variable.assign(9.0)
    return given


@case
def a_copy_of_a_variable(tf):
    variable = tf.Variable([1.0, 2.0])
    copied = copy.deepcopy(variable)
    variable.assign_add([1.0, 1.0])
    return variable, copied


@case
def errors_that_programs_catch(tf):
    def caught(fn, *kinds):
        try:
            fn()
        except kinds:
            return 1
        return 0

    invalid = tf.errors.InvalidArgumentError

    @tf.function
    def checked(x):
        tf.debugging.assert_positive(x)
        return x

    return [
        caught(lambda: tf.reshape(tf.ones(6), (4, 2)), invalid),
        caught(lambda: tf.matmul(tf.ones((2, 3)), tf.ones((2, 3))), invalid),
        caught(lambda: tf.debugging.assert_equal(1, 2), invalid),
        caught(lambda: checked(tf.constant(-1.0)), invalid),
        caught(lambda: tf.constant([1.0, 2.0]) + tf.constant([1.0, 2.0, 3.0]), invalid, TypeError),
        caught(lambda: next(iter(tf.data.Dataset.range(0))), StopIteration),
        caught(lambda: tf.io.read_file("/nowhere/to/be/found").numpy(), tf.errors.NotFoundError),
    ]


# Variables, iterators and checks in `run`.


@case
def variables_made_at_the_first_call(tf):
    strategy = two_replicas(tf)
    kept = []

    @tf.function
    def step(x):
        def replica_step(x):
            if not kept:
                kept.append(tf.Variable(tf.sqrt(36.0), aggregation=tf.VariableAggregation.MEAN))
            kept[0].assign_add(x)
            return kept[0].read_value()

        return strategy.run(replica_step, args=(x,))

    with strategy.scope():
        return [local(strategy, step(tf.constant(3.0))) for _ in range(2)]


@case
def a_loop_over_distributed_data_in_a_function(tf):
    strategy = two_replicas(tf)
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(12).batch(4))

    @tf.function
    def epoch():
        total = tf.constant(0, tf.int64)
        for batch in data:
            sums = strategy.run(tf.reduce_sum, args=(batch,))
            total += strategy.reduce("SUM", sums, axis=None)
        return total

    return epoch()


# Sizes that are not known.


@case
def unknown_sizes_in_a_model(tf):
    class Positions(tf.keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.table = tf.constant(np.arange(80.0).reshape(1, 20, 4), tf.float32)

        def call(self, x):
            length = tf.shape(x)[1]
            places = tf.cast(tf.range(length), tf.float32)
            return x + self.table[:, :length, :] + places[tf.newaxis, :, tf.newaxis]

    inputs = tf.keras.Input((None, 4))
    model = tf.keras.Model(inputs, Positions()(inputs))
    return [model(tf.ones((2, length, 4))) for length in (3, 7)]


# Callbacks, arguments and steps of programs.


@case
def a_step_of_a_batch(tf):
    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, x, training=False):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            pairs = zip(gradients, self.trainable_variables, strict=True)
            self.optimizer.apply_gradients(pairs)
            return {"own": loss}

    model = Model()
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1))
    x = np.arange(8.0, dtype="float32").reshape(4, 2) / 8
    history = model.fit(x, x[:, :1], batch_size=2, epochs=3, shuffle=False, verbose=0)
    return history.history["own"], model.get_weights()


@case
def callbacks_are_called_in_order(tf):
    told = []

    class Tell(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            told.append(epoch)

        def on_train_batch_end(self, batch, logs=None):
            told.append(100 + batch)

        def on_epoch_end(self, epoch, logs=None):
            told.append(1000 + int(logs["loss"] > 0))

    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(tf.keras.optimizers.SGD(0.01), "mse")
    x = np.ones((6, 2), "float32")
    model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[Tell()])
    return told

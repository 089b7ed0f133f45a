"""Two workers that differ in one thing after another; each time both must be told."""

import jax
import keras
import numpy as np

import replicax as rx


def in_worker():
    """What `WorkersDiffer` says in each case; nothing if it was not raised."""
    strategy = rx.MultiWorkerMirroredStrategy()
    me = jax.process_index()
    found = {}
    for case in CASES:
        try:
            case(strategy, me)
            found[case.__name__] = ""
        except rx.errors.WorkersDiffer as error:
            found[case.__name__] = str(error)
    found["on host"] = on_host(strategy)
    return found


def wiring(strategy, me):
    """The same operations on the same shapes, but not on the same variables."""
    with strategy.scope():
        pair = {name: keras.Variable(float(i), name=name) for i, name in enumerate("ab")}
    order = "ab" if me == 0 else "ba"

    def fn():
        first, second = (pair[name] for name in order)
        first.assign(first - second)

    strategy.run(fn)


def key(strategy, me):
    random = jax.random.key(me)
    strategy.run(lambda: jax.random.normal(random, ()))


def argument(strategy, me):
    strategy.run(lambda x: x * 2, (np.float32(me),))


def later_argument(strategy, me):
    def fn(x):
        return x * 2

    for step in range(3):
        strategy.run(fn, (np.float32(step * me if step == 2 else step),))


def weights(strategy, me):
    model = compiled(strategy)
    model.set_weights([value + me for value in model.get_weights()])
    model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)


def number_of_batches(strategy, me):
    rows = 8 * (1 + me)
    compiled(strategy).fit(np.ones((rows, 2)), np.ones((rows, 1)), batch_size=8, verbose=0)


def later_batch(strategy, me):
    batches = [np.arange(4.0), np.arange(4.0) + me]
    for batch in strategy.experimental_distribute_dataset(batches):
        strategy.reduce("SUM", batch, axis=0)


def rows_of_arrays(strategy, me):
    rows = np.ones((400, 2), "float32") * (1 + me)
    compiled(strategy).fit(rows, np.ones((400, 1), "float32"), batch_size=8, verbose=0)


def shapes_of_arrays(strategy, me):
    rows = np.ones((400, 2 + me), "float32")
    compiled(strategy, None).fit(rows, np.ones((400, 1), "float32"), batch_size=8, verbose=0)


def kind_of_batches(strategy, me):
    def batches(context):
        return (np.ones((2, 3 if step == 3 and me else 2), "float32") for step in range(5))

    for batch in strategy.distribute_datasets_from_function(batches):
        strategy.run(total, (batch,))


def kind_of_values(strategy, me):
    for step in range(5):
        value = strategy.experimental_distribute_values_from_function(
            lambda context, step=step: np.ones((2, 3 if step == 3 and me else 2), "float32")
        )
        strategy.run(total, (value,))


CASES = (
    wiring,
    key,
    argument,
    later_argument,
    weights,
    number_of_batches,
    later_batch,
    rows_of_arrays,
    shapes_of_arrays,
    kind_of_batches,
    kind_of_values,
)


def total(x):
    return x.sum()


def compiled(strategy, features=2):
    """A model; one without a number of features is built for its first batch."""
    layers = [keras.Input((features,))] if features else []
    with strategy.scope():
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def on_host(strategy):
    """With one replica on each worker, pieces in host memory are pieces all the same."""
    options = rx.InputOptions(experimental_fetch_to_device=False)
    (batch,) = strategy.experimental_distribute_dataset([np.arange(8.0)], options)
    total = float(strategy.reduce("SUM", batch, axis=0))
    return total, np.asarray(strategy.gather(batch, axis=0)).tolist()

"""A small training, and what JAX was asked to compile for it."""

from __future__ import annotations

from collections import Counter


def start():
    """Train, evaluate and run a loop; give what came out, and how often JAX was to compile."""
    import jax

    events = Counter()
    jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))

    import keras
    import numpy as np

    import replicax as rx

    keras.utils.set_random_seed(3)
    strategy = rx.MultiWorkerMirroredStrategy()
    rows = np.random.default_rng(4).normal(size=(10, 4)).astype("float32")
    targets = rows.sum(axis=1, keepdims=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        total = keras.Variable(0.0, aggregation="sum")
    # The last batch has two rows: two programs.
    losses = model.fit(rows, targets, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    value = model.evaluate(rows[:8], targets[:8], batch_size=4, verbose=0)

    def add(x):
        total.assign_add(x.sum())
        return x.mean()

    (batch,) = strategy.experimental_distribute_dataset([rows[:4]])
    means = [strategy.run(add, (batch,))]
    means.append(rx.function(lambda x: strategy.run(add, (x,)))(batch))
    means = [float(strategy.reduce("MEAN", mean, axis=None)) for mean in means]
    results = [losses["loss"], value, means]
    return results, float(total.value), events["/jax/compilation_cache/compile_requests_use_cache"]

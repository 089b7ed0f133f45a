"""Workers whose state drifts apart in the middle of training, in one variable after another."""

import tempfile

import jax
import keras
import numpy as np

import replicax as rx

ROWS, BATCH = 1200, 8  # 150 steps in an epoch, so that state is compared in the middle of it


class Drift(keras.callbacks.Callback):
    """Changes something on one worker only."""

    def __init__(self, change, *, step=None, epoch=None):
        super().__init__()
        self._change, self._step, self._epoch = change, step, epoch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self._step:
            self._change(self.model)

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self._epoch:
            self._change(self.model)


def learning_rate(model):
    model.optimizer.learning_rate.assign(0.25)


def weights(model):
    model.layers[0].kernel.assign(model.layers[0].kernel + 1e-3)


def swapped_weights(model):
    kernel = np.array(model.layers[0].kernel)
    model.layers[0].kernel.assign(kernel[::-1])


def slot(model):
    momentum = model.optimizer.variables[2]
    momentum.assign(momentum + 1e-3)  # by 1 all weights would be NaN, everywhere


def counter(model):
    model.optimizer.iterations.assign_add(7)


def seed(model):
    state = model.layers[1].seed_generator.state
    state.assign(state + 1)


CHANGES = (learning_rate, weights, swapped_weights, slot, counter, seed)


def compiled(strategy, optimizer=None):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.1),
             keras.layers.Dense(1)]
        )  # fmt: skip
        model.compile(optimizer or keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    return model


def rows(count=ROWS):
    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def caught(train):
    """What `WorkersDiffer` says; nothing if it was not raised."""
    try:
        train()
    except rx.errors.WorkersDiffer as error:
        return list(error.differing), str(error)
    return [], ""


def in_worker(culprit):
    """What each drift of one worker comes to, at different moments, and what is none."""
    strategy = rx.MultiWorkerMirroredStrategy()
    is_culprit = jax.process_index() == culprit
    found = {}
    for change in CHANGES:
        found[f"{change.__name__} in an epoch"] = caught(
            lambda change=change: _fit(strategy, is_culprit, change, step=3)
        )
    found["learning_rate at the end of an epoch"] = caught(
        lambda: _fit(strategy, is_culprit, learning_rate, count=16, epochs=3, epoch=0)
    )
    found["weights at the end of the last epoch"] = caught(
        lambda: _fit(strategy, is_culprit, weights, count=16, epochs=2, epoch=1)
    )
    found["weights in a checkpoint"] = caught(lambda: _checkpoint(strategy, is_culprit))
    found["learning_rate in a loop"] = caught(lambda: _loop(strategy, is_culprit))
    return found, {case.__name__: caught(lambda case=case: case(strategy))[0] for case in EQUAL}


def in_one_fit(culprit, change, **when):
    """What one drift in `fit` comes to."""
    strategy = rx.MultiWorkerMirroredStrategy()
    return caught(lambda: _fit(strategy, jax.process_index() == culprit, change, **when))


def _fit(strategy, is_culprit, change, *, count=ROWS, epochs=1, **when):
    callbacks = [Drift(change, **when)] if is_culprit else []
    compiled(strategy).fit(
        *rows(count), batch_size=BATCH, epochs=epochs, verbose=0, callbacks=callbacks
    )


def _checkpoint(strategy, is_culprit):
    model = compiled(strategy)
    if is_culprit:
        weights(model)
    with tempfile.TemporaryDirectory() as folder:
        rx.train.Checkpoint(model=model).save(f"{folder}/ckpt")


def _loop(strategy, is_culprit):
    model = compiled(strategy)
    x, y = rows(BATCH)

    @rx.function
    def step(x, y):
        with rx.GradientTape() as tape:
            loss = keras.ops.mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for number in range(130):
        strategy.run(step, (x, y))
        if number == 2 and is_culprit:
            learning_rate(model)


def everything(strategy):
    """BatchNormalization, Dropout, metrics, a learning rate that all change."""
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3),
             keras.layers.Dense(1)]
        )  # fmt: skip
        model.compile("adam", "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()])
    x, y = rows(ROWS + 3)  # the last batch is uneven
    callbacks = [Drift(learning_rate, step=3, epoch=0)]
    validation = (x[:21], y[:21])
    model.fit(
        x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=callbacks, validation_data=validation
    )


def half_precision(strategy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")  # with a scale of losses in the optimizer
    try:
        compiled(strategy).fit(*rows(), batch_size=BATCH, verbose=0)
    finally:
        keras.config.set_dtype_policy(before)


def not_a_number(strategy):
    optimizer = keras.optimizers.SGD(1e30)
    compiled(strategy, optimizer).fit(*rows(), batch_size=BATCH, epochs=2, verbose=0)


def own_rows(strategy):
    """A variable that is combined when it is read differs between replicas."""
    with strategy.scope():
        count = rx.tf.Variable(
            0.0,
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation.SUM,
            trainable=False,
        )

    def step():
        rank = rx.get_replica_context().replica_id_in_sync_group
        count.assign_add(1.0 + rank)

    for _ in range(130):
        strategy.run(step)


# Their workers stay equal; each has what might look like a difference.
EQUAL = (everything, half_precision, not_a_number, own_rows)

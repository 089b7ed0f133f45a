"""A program that is interrupted at random moments, and sees that its model lost nothing.

`python interrupted.py STRATEGY KIND INTERRUPTS` prints a line of JSON. All variables must have the
values that they have after as many steps of a run that nobody interrupts.
"""

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import keras
import numpy as np

import replicax as rx

ROWS, BATCH = 64, 16
STEPS = ROWS // BATCH
STRATEGIES = {
    "default": lambda: rx.get_strategy(),
    "one device": lambda: rx.OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
    "central storage": lambda: rx.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"]),
    "multi-worker": lambda: rx.MultiWorkerMirroredStrategy(),
    "parameter servers": lambda: rx.ParameterServerStrategy(num_workers=1, num_ps=1),
}


def made(strategy, kind):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(32, "relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3, seed=5),
                keras.layers.Dense(1),
            ]
        )
        several = 3 if kind == "several steps at once" else 1
        model.compile(
            keras.optimizers.Adam(0.01), "mse", metrics=["mae"], steps_per_execution=several
        )
        model.optimizer.build(model.trainable_variables)
    return model


class Trained:
    """A model, ways to train it, and all of its variables."""

    def __init__(self, strategy, kind):
        self.strategy, self.kind = strategy, kind
        self.model = made(strategy, kind)
        draw = np.random.default_rng(1)
        self.x = draw.normal(size=(ROWS, 8)).astype("float32")
        self.y = self.x.sum(1, keepdims=True)
        self.train = getattr(self, kind.replace(" ", "_"))
        self._step = self._compiled()
        self.train(1)
        self.model.evaluate(self.x, self.y, BATCH, verbose=0)
        self.model.predict(self.x, BATCH, verbose=0)
        self.first = self.values()

    def variables(self):
        return [*self.model.variables, *self.model.optimizer.variables]

    def values(self):
        return [np.array(v.value) for v in self.variables()]

    def begin_anew(self):
        for variable, value in zip(self.variables(), self.first, strict=True):
            variable.assign(value)

    def steps(self):
        return int(self.model.optimizer.iterations.value)

    def fit(self, epochs, callbacks=()):
        self.model.fit(
            self.x, self.y, BATCH, epochs, verbose=0, shuffle=False, callbacks=list(callbacks)
        )

    several_steps_at_once = fit

    def generator(self, epochs, callbacks=()):
        def batches():
            for _ in range(epochs * STEPS):
                i = _ % STEPS * BATCH
                yield self.x[i : i + BATCH], self.y[i : i + BATCH]

        self.model.fit(
            batches(), epochs=epochs, steps_per_epoch=STEPS, verbose=0, callbacks=list(callbacks)
        )

    def data_set(self, epochs, callbacks=()):
        data = rx.data.Dataset.from_tensor_slices((self.x, self.y)).batch(BATCH).prefetch(2)
        self.model.fit(data, epochs=epochs, verbose=0, callbacks=list(callbacks))

    def on_batch(self, epochs, callbacks=()):
        for i in [j for _ in range(epochs) for j in range(0, ROWS, BATCH)]:
            self.model.train_on_batch(self.x[i : i + BATCH], self.y[i : i + BATCH])
            for callback in callbacks:
                callback.on_train_batch_end(0)

    def evaluating(self, epochs, callbacks=()):
        """Steps, and between them what reads and writes the state of metrics."""
        for _ in range(epochs):
            self.fit(1, callbacks)
            self.model.evaluate(self.x, self.y, BATCH, verbose=0)
            self.model.predict(self.x, BATCH, verbose=0)

    def _compiled(self):
        model, strategy = self.model, self.strategy

        def replica(x, y):
            with rx.GradientTape() as tape:
                error = keras.ops.sum((model(x, training=True) - y) ** 2) / BATCH
            grads = tape.gradient(error, model.trainable_variables)
            model.optimizer.apply(grads, model.trainable_variables)
            return error

        def step(x, y):
            return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)

        self._replica = replica
        return rx.function(step)

    def function(self, epochs, callbacks=(), call=None):
        data = rx.data.Dataset.from_tensor_slices((self.x, self.y)).batch(BATCH)
        for _ in range(epochs):
            for batch in self.strategy.experimental_distribute_dataset(data):
                (call or self._step)(*batch)
                for callback in callbacks:
                    callback.on_train_batch_end(0)

    def run(self, epochs, callbacks=()):
        self.function(epochs, callbacks, lambda *b: self.strategy.run(self._replica, args=b))


class Recorded(keras.callbacks.Callback):
    def __init__(self, trained, found):
        super().__init__()
        self.trained, self.found = trained, found

    def on_train_batch_end(self, batch, logs=None):
        if self.model is not None:
            self.model.jax_state_sync()
        self.found[self.trained.steps()] = self.trained.values()


def interrupt_after(seconds, is_over):
    """SIGINT for this process after a while, unless the work is over before."""

    def send():
        if not is_over.wait(seconds):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def seconds_of(trained, rounds):
    """How long the work takes, so that interrupts fall into it."""
    trained.begin_anew()
    began = time.monotonic()
    trained.train(rounds)
    return time.monotonic() - began


def main(name, kind, interrupts):
    """Interrupt training so often; print what was seen."""
    # Shells start background jobs with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    trained = Trained(STRATEGIES[name](), kind)
    begun = trained.steps()
    expected = {begun: trained.first}
    rounds = 30
    trained.train(rounds, [Recorded(trained, expected)])
    longest = min(0.5 * min(seconds_of(trained, rounds) for _ in range(2)), 3.0)
    draw, raised, at, wrong = random.Random(7), 0, set(), []
    for _ in range(interrupts):
        trained.begin_anew()
        is_over = threading.Event()
        try:
            thread = interrupt_after(draw.uniform(0, longest), is_over)
            trained.train(rounds)
        except KeyboardInterrupt:
            raised += 1
        except BaseException as error:
            wrong.append(f"{type(error).__name__} came instead: {error}"[:200])
        is_over.set()
        with contextlib.suppress(KeyboardInterrupt):
            thread.join()
            time.sleep(0.01)
        try:
            steps = trained.steps()
            at.add(steps)
            for v, value, wanted in zip(
                trained.variables(), trained.values(), expected[steps], strict=True
            ):
                if not np.array_equal(value, wanted):
                    wrong.append(f"{v.path} after {steps} steps")
        except Exception as error:
            wrong.append(f"lost: {type(error).__name__}: {error}"[:200])
            break
    lost = used(trained) if not any(w.startswith("lost") for w in wrong) else []
    sys.stdout.write(
        json.dumps({"raised": raised, "moments": len(at), "wrong": wrong[:5] + lost}) + "\n"
    )


def used(trained):
    """What does not work afterwards, of all that one does with a model."""
    model, wrong = trained.model, []
    calls = {
        "evaluate": lambda: model.evaluate(trained.x, trained.y, BATCH, verbose=0),
        "predict": lambda: model.predict(trained.x, BATCH, verbose=0),
        "fit": lambda: model.fit(trained.x, trained.y, BATCH, verbose=0),
        "train_on_batch": lambda: model.train_on_batch(trained.x[:BATCH], trained.y[:BATCH]),
        "get_weights": model.get_weights,
        "save": lambda: model.save(f"/tmp/interrupted-{os.getpid()}.keras"),
    }
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}"[:200])
    with contextlib.suppress(OSError):
        os.unlink(f"/tmp/interrupted-{os.getpid()}.keras")
    return wrong


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

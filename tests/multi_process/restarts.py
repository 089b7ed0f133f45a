"""Training that is ended and goes on, as a program of `replicax run`: `restarts.py WHAT FOLDER`.

What a worker has found, it writes to FOLDER, a file for each name and worker.
"""

import contextlib
import functools
import itertools
import json
import os
import signal
import sys
from pathlib import Path

import jax
import keras
import numpy as np

import replicax as rx
from replicax._core import events

EPOCHS, BATCH = 3, 4  # of 28 rows: 7 steps in each epoch
SAMPLE = np.random.default_rng(1)
ROWS = SAMPLE.normal(size=(28, 4)).astype("float32")
TARGETS = SAMPLE.normal(size=(28, 1)).astype("float32")


class Ended(Exception):
    """Raised in place of an exit, by programs that go on with something else."""


def leave():
    raise Ended


@functools.cache
def made(strategy):
    """A model, which is compiled once in each process, and the values that it begins with."""
    with strategy.scope() if strategy else contextlib.nullcontext():
        keras.utils.set_random_seed(5)
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
        model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    begin = [(variable, np.array(variable.value)) for variable in variables]
    # The first `fit` of a model draws an order more, to look at the first batch.
    model.fit(ROWS[:BATCH], TARGETS[:BATCH], verbose=0)
    return model, begin


def net(strategy):
    model, begin = made(strategy)
    for variable, value in begin:
        variable.assign(value)
    return model


def write_files(folder):
    """Which rows there are, in files; two workers have 16 and 12 rows: 8 steps in each epoch."""
    for number, rows in enumerate([range(8), range(8, 14), range(14, 22), range(22, 28)]):
        (folder / f"rows-{number}.txt").write_text("".join(f"{row}\n" for row in rows))


def row(line):
    number = int(np.asarray(line).item())
    return ROWS[number], TARGETS[number]


def data(kind, folder):
    """What `fit` gets; each with an order that only random numbers know."""
    if kind == "arrays":
        return {"x": ROWS, "y": TARGETS, "batch_size": BATCH}
    if kind == "pipeline":
        rows = rx.data.Dataset.from_tensor_slices((ROWS, TARGETS))
        return {"x": rows.shuffle(28).batch(BATCH)}
    lines = rx.data.TextLineDataset(sorted(map(str, folder.glob("rows-*.txt"))))
    return {"x": lines.map(row).shuffle(5).batch(BATCH)}


def fit(kind, strategy, folder, backup=None, callbacks=()):
    """Train; give what is to be the same, however often the program was ended."""
    model = net(strategy)
    # For the order. The chief's counts; after a restart, that of the backup.
    np.random.seed(3 + jax.process_index() + 100 * int(os.environ.get("RX_RESTART", 0)))
    callbacks = [*callbacks, keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)]
    if backup is not None:
        callbacks.append(backup)
    found = model.fit(epochs=EPOCHS, verbose=0, callbacks=callbacks, **data(kind, folder))
    return {
        "history": {name: [float(v) for v in values] for name, values in found.history.items()},
        "epochs": list(found.epoch),
        "weights": [value.tolist() for value in model.get_weights()],
    }


def path_of(folder, name):
    return folder / f"{name}-{jax.process_index()}.json"


def note(folder, name, value):
    path_of(folder, name).write_text(json.dumps(value))


def is_new(folder, name):
    return not path_of(folder, name).exists()


class Told(keras.callbacks.Callback):
    """SIGTERM to one worker, in the middle of the second epoch."""

    def __init__(self, worker):
        super().__init__()
        self.worker = worker

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == (1, 3) and jax.process_index() == self.worker:
            signal.raise_signal(signal.SIGTERM)


def killed(folder):
    """An exact restart after SIGKILL in the second epoch; then one by Keras' own callbacks."""
    strategy = rx.MultiWorkerMirroredStrategy()
    if is_new(folder, "whole"):
        note(folder, "whole", fit("arrays", strategy, folder))
    if is_new(folder, "resumed"):
        backup = rx.callbacks.BackupAndRestore(folder / "backup", every_batches=2)
        note(folder, "resumed", fit("arrays", strategy, folder, backup))
    by_keras(strategy, folder)


def by_keras(strategy, folder):
    kept = folder / "keras"
    kept.mkdir(exist_ok=True)
    restart = os.environ["RX_RESTART"]

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            note(folder, f"start{restart}-epoch{epoch}", self.model.get_weights()[0].tolist())

        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1 and restart == "1" and strategy.extended.should_checkpoint:
                os.kill(os.getpid(), signal.SIGKILL)

    model = net(strategy)
    callbacks = [
        keras.callbacks.BackupAndRestore(str(kept / "backup")),
        keras.callbacks.ModelCheckpoint(str(kept / "epoch{epoch}.keras")),
        keras.callbacks.CSVLogger(str(kept / "log.csv"), append=True),
        Kill(),
    ]
    model.fit(ROWS, TARGETS, batch_size=28, epochs=3, shuffle=False, callbacks=callbacks)
    note(folder, "by_keras", model.get_weights()[0].tolist())


def told(folder):
    """SIGTERM to one worker, in the second epoch of a pipeline, and of files."""
    strategy = rx.MultiWorkerMirroredStrategy()
    options = {"pipeline": {"exit_fn": leave}, "files": {}}
    for kind in options:
        if is_new(folder, f"{kind}-whole"):
            note(folder, f"{kind}-whole", fit(kind, strategy, folder))
    for kind in options:
        if not is_new(folder, kind):
            continue
        # The first time the program ends at the second data set.
        backup = rx.callbacks.BackupAndRestore(folder / f"{kind}-backup", **options[kind])
        with contextlib.suppress(Ended):
            note(folder, kind, fit(kind, strategy, folder, backup))


def begun(folder):
    """The begin of training by two workers; what they save goes on with another number."""
    strategy = rx.MultiWorkerMirroredStrategy()
    for kind in ("arrays", "pipeline"):
        backup = rx.callbacks.BackupAndRestore(folder / kind, exit_fn=leave)
        with contextlib.suppress(Ended):
            note(folder, kind, fit(kind, strategy, folder, backup, [Told(1)]))
    local(folder)


def local(folder):
    """A model of a local strategy trains alone, in one of the workers, and writes there."""
    if jax.process_index() == 1:
        backup = rx.callbacks.BackupAndRestore(folder / "alone", delete_checkpoint=False)
        saved = keras.callbacks.ModelCheckpoint(str(folder / "alone.keras"))
        note(folder, "alone", fit("arrays", rx.MirroredStrategy(), folder, backup, [saved]))


def gone_on(folder):
    """The rest of it, by as many workers as there are."""
    strategy = rx.MultiWorkerMirroredStrategy()
    for kind in ("arrays", "pipeline"):
        backup = rx.callbacks.BackupAndRestore(folder / kind)
        note(folder, kind, fit(kind, strategy, folder, backup))


def loop(folder):
    """Loops of our own: one that is told to end, and one in which the chief dies while it saves."""
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        total = keras.Variable(0.0, aggregation="sum")

    def step():
        strategy.run(lambda: total.assign_add(1.0))

    if is_new(folder, "handled"):
        checkpoint = rx.train.Checkpoint(total=total)
        handler = rx.experimental.PreemptionCheckpointHandler(None, checkpoint, folder / "handler")
        before = handler.total_run_calls
        while handler.total_run_calls < 6:
            handler.run(step)
            note(folder, f"calls{os.environ['RX_RESTART']}", handler.total_run_calls)
        handler.close()
        note(folder, "handled", [before, float(total)])
    saves(strategy, folder)


def saves(strategy, folder):
    with strategy.scope():
        value = keras.Variable(np.zeros(1000, "float32"))
    number = rx.train.Value(0)
    checkpoint = rx.train.Checkpoint(value=value, number=number)
    manager = rx.train.CheckpointManager(checkpoint, folder / "saves", max_to_keep=2)
    manager.restore_or_initialize()
    before = [number.value, float(np.mean(value))]
    while number.value < 5:
        number.value += 1
        value.assign_add(np.ones(1000, "float32"))
        if number.value == 4 and not before[0] and strategy.extended.should_checkpoint:
            # All is written, and has not its name yet.
            os.rename = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
        manager.save()
    note(folder, "saved", [*before, float(np.mean(value))])


def make_faults(folder):
    """Signals to this process, each before a step, and once over all restarts."""

    steps = itertools.count(1)

    def begin(doing):
        step = next(steps)
        for fault in os.environ.get("FAULTS", "").split():
            name, worker, when = fault.split(":")
            made = folder / f"made-{fault}"
            if (int(worker), int(when)) == (jax.process_index(), step) and not made.exists():
                made.touch()
                os.kill(os.getpid(), signal.Signals[name])

    events.listen(begin)


if __name__ == "__main__":
    make_faults(Path(sys.argv[2]))
    globals()[sys.argv[1]](Path(sys.argv[2]))

import functools
import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import CheckpointError, UsageError
from replicax._keras import _compat

from channels import as_workers
from fitting import ROWS, TARGETS, made


class Ended(Exception):
    pass


def leave():
    raise Ended


class EndAfter(keras.callbacks.Callback):
    """Ends the program by SIGTERM in the middle of an epoch."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.when = (epoch, batch)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.when:
            signal.raise_signal(signal.SIGTERM)


@functools.cache
def compiled(strategy=None):
    """A model, and the values that it begins with; compiling it takes longest here."""

    def make():
        keras.utils.set_random_seed(5)
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse", metrics=["mae"])
        model.train_on_batch(ROWS[:4], TARGETS[:4])
        return model

    model = made(strategy, make)
    variables = [*model.variables, *model.optimizer.variables]
    return model, [(variable, np.array(variable.value)) for variable in variables]


def net(strategy=None, *, is_new=True):
    """The model as it began; a new one has Keras look at the first batch."""
    model, begin = compiled(strategy)
    model.jax_state_sync()  # of a run that was ended
    for variable, value in begin:
        variable.assign(value)
    model._compile_loss.built = not is_new
    keras.utils.set_random_seed(5)
    return model


class Reader(keras.utils.PyDataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return ROWS[4 * index : 4 * index + 4], TARGETS[4 * index : 4 * index + 4]


def endless():
    sample = np.random.default_rng(0)
    while True:
        rows = sample.permutation(len(ROWS))[:4]
        yield ROWS[rows], TARGETS[rows]


def pipeline():
    return rx.data.Dataset.from_tensor_slices((ROWS, TARGETS)).shuffle(27, seed=7).batch(4)


def records():
    """Not numbers of rows, but elements wait in the buffer of the shuffle."""
    rows = rx.data.Dataset.from_generator(lambda: zip(ROWS, TARGETS, strict=True))
    return rows.shuffle(9, seed=7).batch(4)


DATA = {
    "arrays": lambda: {"x": ROWS, "y": TARGETS, "batch_size": 4},
    "arrays in shuffled batches": lambda: {
        "x": ROWS,
        "y": TARGETS,
        "batch_size": 4,
        "shuffle": "batch",
    },
    "part of the arrays in each epoch": lambda: {
        "x": ROWS,
        "y": TARGETS,
        "batch_size": 4,
        "steps_per_epoch": 2,
    },
    "a PyDataset": lambda: {"x": Reader()},
    "a PyDataset with threads": lambda: {"x": Reader(workers=2), "shuffle": False},
    "a generator": lambda: {"x": endless(), "steps_per_epoch": 7, "shuffle": False},
    "a pipeline": lambda: {"x": pipeline()},
    "a pipeline of unknown length": lambda: {"x": pipeline().filter(lambda x, y: True)},
    "a pipeline of records": lambda: {"x": records()},
    "part of a pipeline": lambda: {"x": pipeline().repeat(), "steps_per_epoch": 2},
}


def run(folder, data, strategy=None, end=None, *, is_new=True, **options):
    """Train, maybe until it is ended; give the weights, and the history."""
    model = net(strategy, is_new=is_new)
    callbacks = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)]
    if folder is not None:
        callbacks.append(rx.callbacks.BackupAndRestore(folder, exit_fn=leave, **options))
    if end is not None:
        callbacks.append(EndAfter(*end))
    fit = {"epochs": 3, "verbose": 0, "callbacks": callbacks, **DATA[data]()}
    if end is not None:
        with pytest.raises(Ended):
            model.fit(**fit)
        if "threads" in data:
            _compat.epochs_of(model).data_adapter.enqueuer.stop()  # which Keras forgets
        return None
    history = model.fit(**fit)
    return [np.asarray(v.value) for v in model.variables], history.history, history.epoch


def scramble():
    """Another process begins with other random numbers."""
    np.random.seed(99)
    random.seed(99)


def assert_same(one, other):
    for value, expected in zip(one[0], other[0], strict=True):
        np.testing.assert_array_equal(value, expected)
    assert one[1:] == other[1:]


uninterrupted = functools.cache(lambda data, **options: run(None, data, **options))


@pytest.mark.parametrize("data", DATA)
def test_fit_goes_on_in_the_middle_of_an_epoch(tmp_path, data):
    run(tmp_path, data, end=(1, 0) if "part" in data else (1, 3))
    scramble()
    assert_same(run(tmp_path, data), uninterrupted(data))
    assert not tmp_path.exists()


@pytest.mark.parametrize("data", ["arrays", "a pipeline of unknown length", "part of a pipeline"])
def test_fit_goes_on_at_the_begin_of_an_epoch(tmp_path, data):
    # After the last batch: there is nothing of this epoch to go on with.
    run(tmp_path, data, end=(0, 1) if "part" in data else (0, 6))
    scramble()
    assert_same(run(tmp_path, data), uninterrupted(data))


def test_fit_is_ended_twice_in_one_epoch(tmp_path):
    run(tmp_path, "a pipeline", end=(1, 1))
    run(tmp_path, "a pipeline", end=(1, 4))
    assert_same(run(tmp_path, "a pipeline"), uninterrupted("a pipeline"))


def test_a_run_that_was_killed_goes_on_from_the_last_backup(tmp_path):
    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations.value is not None and batch == 5:
                raise Ended

    model = net()
    backup = rx.callbacks.BackupAndRestore(tmp_path, every_batches=2)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Ended):
        rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
        model.fit(ROWS, TARGETS, batch_size=4, verbose=0, callbacks=[rate, backup, Kill()])
    assert signal.getsignal(signal.SIGTERM) == before
    assert sorted(os.listdir(tmp_path)) == ["ckpt-2", "ckpt-3"]
    scramble()
    assert_same(run(tmp_path, "arrays"), uninterrupted("arrays"))


def test_a_damaged_backup_is_named_and_the_one_before_is_used(tmp_path, caplog):
    run(tmp_path, "arrays", end=(1, 3))
    newest, older = sorted(os.listdir(tmp_path), reverse=True)
    (tmp_path / newest / "checkpoint.json").write_text("{}")
    scramble()
    assert_same(run(tmp_path, "arrays", delete_checkpoint=False), uninterrupted("arrays"))
    assert newest in caplog.text
    for name in os.listdir(tmp_path):
        (tmp_path / name / "checkpoint.json").write_text("{}")
    with pytest.raises(CheckpointError, match="ckpt-"):
        run(tmp_path, "arrays")


def test_a_finished_run_that_is_kept_is_not_trained_again(tmp_path):
    first = run(tmp_path, "arrays", delete_checkpoint=False)
    assert_same(run(tmp_path, "arrays", delete_checkpoint=False), first)


PROGRAM = """
    import os, signal, sys
    import keras, numpy as np
    import replicax as rx

    class End(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if sys.argv[2:] and batch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse")
    backup = rx.callbacks.BackupAndRestore(sys.argv[1])
    rows = np.arange(12.0).reshape(6, 2)
    model.fit(rows, rows[:, :1], batch_size=1, verbose=0, callbacks=[backup, End()])
    print("done")
"""


def test_sigterm_ends_the_program_with_42(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    ended = subprocess.run([*command, "end"], capture_output=True, text=True, timeout=200)
    assert (ended.returncode, ended.stdout) == (42, ""), ended.stderr
    again = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert (again.returncode, again.stdout) == (0, "done\n"), again.stderr


def test_data_that_is_shorter_is_refused(tmp_path):
    run(tmp_path, "a generator", end=(1, 3))
    model, backup = net(), rx.callbacks.BackupAndRestore(tmp_path)
    batches = (batch for batch in itertools.islice(endless(), 3))
    with pytest.raises(UsageError, match="within the next 7 batches"):
        model.fit(
            batches, steps_per_epoch=7, epochs=3, verbose=0, callbacks=[backup], shuffle=False
        )


@pytest.mark.parametrize("rows", [2, len(ROWS)])
def test_another_batch_size_is_refused_in_the_middle_of_an_epoch(tmp_path, rows):
    run(tmp_path, "arrays", end=(1, 1))
    backup = rx.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(UsageError, match="batch size"):
        net().fit(ROWS, TARGETS, batch_size=rows, epochs=3, verbose=0, callbacks=[backup])


def test_every_batches_is_positive():
    with pytest.raises(UsageError, match="`every_batches`"):
        rx.callbacks.BackupAndRestore("backup", every_batches=0)


def test_the_chief_writes_for_all_workers(tmp_path):
    def work(index):
        callback = rx.callbacks.BackupAndRestore(
            tmp_path, delete_checkpoint=False, termination_watcher_fn=lambda: False
        )
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, name="d", kernel_initializer="ones")]
        )
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(ROWS[:8], TARGETS[:8], epochs=2, shuffle=False, verbose=0, callbacks=[callback])
        return np.asarray(model.variables[0].value).tolist()

    first, second = as_workers(2, work)
    assert first == second, (first, second)
    assert sorted(os.listdir(tmp_path)) == ["ckpt-1", "ckpt-2"]


@pytest.mark.parametrize("data", ["arrays", "a pipeline", "a pipeline of records"])
def test_fit_of_a_model_that_was_trained_before_goes_on(tmp_path, data):
    run(tmp_path, data, end=(1, 3), is_new=False)
    scramble()
    assert_same(run(tmp_path, data, is_new=False), uninterrupted(data, is_new=False))


@pytest.fixture(scope="module")
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.parametrize("data", ["arrays", "a pipeline of records"])
def test_fit_of_a_strategy_goes_on(tmp_path, two, data):
    whole = run(None, data, two)
    run(tmp_path, data, two, end=(1, 3))
    scramble()
    assert_same(run(tmp_path, data, two), whole)


@pytest.mark.parametrize("data", ["a pipeline", "a pipeline of records"])
@pytest.mark.parametrize("before", [True, False])
def test_data_goes_on_distributed_or_not(tmp_path, two, monkeypatch, data, before):
    # As with several workers before, and one now; or the other way.
    plain = DATA[data]
    distributed = {"x": lambda: two.experimental_distribute_dataset(plain()["x"])}
    whole = run(None, data, two)
    for is_distributed, end in ((before, (1, 3)), (not before, None)):
        make = distributed["x"] if is_distributed else lambda: plain()["x"]
        monkeypatch.setitem(DATA, data, lambda make=make: {"x": make()})
        found = run(tmp_path, data, two, end=end)
    for value, expected in zip(found[0], whole[0], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)

"""Callbacks: the chief writes and prints, and logs become numbers when they are read."""

import inspect
import io
import json
import os
import threading
from contextlib import redirect_stdout
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._fit.callback_list import BatchLogs, StrategyCallbackList
from replicax._fit.trainer import install_hooks
from replicax._keras import _compat
from replicax._keras.workers import channel_of

from channels import as_workers
from fitting import ROWS, TARGETS

install_hooks()


def net():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(1, name="d", kernel_initializer="ones")]
    )
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def fit_by(workers, make, **options):
    def work(index):
        model = net()
        model.fit(
            ROWS[:8],
            TARGETS[:8],
            callbacks=make(index),
            **{"verbose": 0, "shuffle": False, **options},
        )
        return model

    results = as_workers(workers, work)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def test_the_chief_saves_models_and_logs(tmp_path):
    def callbacks(index):
        folder = tmp_path / str(index)
        folder.mkdir()
        return [
            keras.callbacks.ModelCheckpoint(str(folder / "model.keras")),
            keras.callbacks.CSVLogger(str(folder / "log.csv")),
            rx.callbacks.TensorBoard(
                folder / "board",
                histogram_freq=1,
                write_images=True,
                update_freq="batch",
                profile_batch=1,
                embeddings_freq=1,
            ),
        ]

    fit_by(2, callbacks)
    assert sorted(os.listdir(tmp_path / "0")) == ["board", "log.csv", "model.keras"]
    assert os.listdir(tmp_path / "1") == []


def test_keras_tensorboard_is_for_the_chief():
    def work(index):
        board = object.__new__(keras.callbacks.TensorBoard)  # its constructor wants TensorFlow
        if index:
            keras.callbacks.CallbackList([board], model=model)
            for name in ("on_train_begin", "on_train_batch_end", "on_epoch_end", "on_test_end"):
                getattr(board, name)(0)
            return board.model
        return None

    model = net()
    assert as_workers(2, work) == [None, model]


class Counting(keras.callbacks.ModelCheckpoint):
    """Of a user's own: does more than Keras when it saves, and sees every epoch."""

    def __init__(self, path):
        super().__init__(path)
        self.calls = []

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.calls.append(f"epoch {epoch}")

    def _save_model(self, epoch, batch, logs):
        super()._save_model(epoch, batch, logs)
        self.calls.append("saved")


class Logging(keras.callbacks.CSVLogger):
    """Of a user's own: notes each epoch on every worker."""

    def __init__(self, path):
        super().__init__(path)
        self.calls = []

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.calls.append(f"epoch {epoch}")


@pytest.mark.parametrize(
    ("kind", "ending", "calls"),
    [(Counting, ".keras", ["saved", "epoch 0"]), (Logging, ".csv", ["epoch 0"])],
)
def test_of_a_users_class_keras_part_is_for_the_chief(tmp_path, kind, ending, calls):
    made = {}

    def callbacks(index):
        made[index] = kind(f"{tmp_path / str(index)}{ending}")
        return [made[index]]

    fit_by(2, callbacks)
    assert os.listdir(tmp_path) == [f"0{ending}"]
    for callback in made.values():
        assert callback.calls == calls
        assert isinstance(callback, kind)
        assert type(callback).__name__ == kind.__name__


def test_a_loop_may_call_a_callback_itself(tmp_path):
    def work(index):
        saved = keras.callbacks.ModelCheckpoint(str(tmp_path / f"{index}.keras"))
        saved.set_model(net())
        saved.on_epoch_end(0, {"loss": 1.0})

    assert as_workers(2, work) == [None, None]
    assert os.listdir(tmp_path) == ["0.keras"]


def test_one_worker_calls_keras_callbacks_as_they_are(tmp_path, mirrored):
    with mirrored.scope():
        model = net()
    saved = Counting(str(tmp_path / "model.keras"))
    model.fit(ROWS[:8], TARGETS[:8], verbose=0, callbacks=[saved])
    assert type(saved) is Counting
    assert saved.calls == ["saved", "epoch 0"]


def test_a_list_of_a_users_class_is_one_of_ours(mirrored):
    class Mine(keras.callbacks.CallbackList):
        epochs = 0

        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            self.epochs += 1

    with mirrored.scope():
        model = net()
    mine = Mine(add_history=True, model=model, epochs=2, steps=1)
    assert isinstance(mine, StrategyCallbackList)
    model.fit(ROWS[:8], TARGETS[:8], verbose=0, callbacks=mine, epochs=2)
    assert mine.epochs == 2


def test_a_callback_that_joins_at_an_epoch_hears_of_its_batches(mirrored):
    heard = []

    class Late(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            heard.append(batch)

    class Mine(keras.callbacks.CallbackList):
        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            if epoch == 1:
                self.callbacks.append(Late())

    with mirrored.scope():
        model = net()
    mine = Mine(add_history=True, model=model, epochs=3, steps=2)
    model.fit(ROWS[:8], TARGETS[:8], batch_size=4, verbose=0, callbacks=mine, epochs=3)
    assert heard == [0, 1, 0, 1]


def test_a_list_may_be_told_its_model_later(mirrored):
    with mirrored.scope():
        model = net()
    told = keras.callbacks.CallbackList(add_history=True)
    assert not isinstance(told, StrategyCallbackList)
    told.set_model(model)
    assert isinstance(told, StrategyCallbackList)


@pytest.mark.parametrize(
    "name", [name for name in vars(StrategyCallbackList) if name.startswith(("on_", "set_"))]
)
def test_the_list_takes_what_keras_takes(name):
    ours, theirs = (getattr(one, name) for one in (StrategyCallbackList, _compat.CallbackList))
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_keras_backup_is_read_by_workers_that_do_not_see_it(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.epoch = epoch
            if epoch == 1 and not restarted:
                raise KeyboardInterrupt

    restarted = []
    first = {}

    def callbacks(index):
        first.setdefault(index, [])
        return [keras.callbacks.BackupAndRestore(str(tmp_path / str(index))), Stop()]

    with pytest.raises(KeyboardInterrupt):
        fit_by(2, callbacks, epochs=3)
    assert os.listdir(tmp_path) == ["0"]
    restarted.append(True)
    models = fit_by(2, callbacks, epochs=3)
    whole = fit_by(1, lambda index: [], epochs=3)
    for model in models:
        np.testing.assert_allclose(model.get_weights()[0], whole[0].get_weights()[0], rtol=1e-6)
        assert model.history.epoch == [2]
    assert os.listdir(tmp_path) == []


def test_one_worker_prints_the_progress():
    said = io.StringIO()
    with redirect_stdout(said):
        fit_by(3, lambda index: [], verbose="auto")
    assert said.getvalue().count("1/1") <= 2  # before and after the only step


def test_what_comes_first_is_called_first():
    class Plain(keras.callbacks.Callback):
        pass

    class First(keras.callbacks.Callback):
        comes_first = True

    given = [Plain(), First(), Plain()]
    assert _compat.CallbackList(given, model=net()).callbacks == [given[1], given[0], given[2]]
    assert len(given) == 3


def test_models_of_a_local_strategy_have_callbacks_of_their_own(tmp_path, mirrored):
    def work(index):
        with mirrored.scope():
            model = net()
        assert channel_of(model).size == channel_of(net()).size == 1
        if index:
            backup = rx.callbacks.BackupAndRestore(
                tmp_path / "backup", delete_checkpoint=False, termination_watcher_fn=lambda: False
            )
            saved = keras.callbacks.ModelCheckpoint(str(tmp_path / "model.keras"))
            model.fit(ROWS[:8], TARGETS[:8], verbose=0, callbacks=[saved, backup])

    assert as_workers(2, work, together=False) == [None, None]
    assert sorted(os.listdir(tmp_path)) == ["backup", "model.keras"]


def test_models_of_several_workers_have_their_channel():
    topology = SimpleNamespace(num_processes=2)
    distribution = SimpleNamespace(topology=topology)
    strategy = SimpleNamespace(extended=SimpleNamespace(distribution=distribution))
    model = net()
    _compat.bind_strategy(model, strategy)
    assert as_workers(2, lambda index: channel_of(model).index, together=False) == [0, 1]


class Computed:
    """A number that counts how often it is asked for."""

    def __init__(self, value):
        self.value, self.reads = value, 0

    def __float__(self):
        self.reads += 1
        return self.value


@pytest.mark.parametrize(
    "look",
    [
        dict,
        lambda logs: {**logs},
        lambda logs: dict(logs.items()),
        lambda logs: {name: logs[name] for name in logs},
        lambda logs: logs.copy(),
        lambda logs: {} | logs,
        lambda logs: json.loads(json.dumps(logs)),
        lambda logs: {"accuracy": logs.get("accuracy"), "loss": logs.pop("loss")},
        lambda logs: dict(zip(logs.keys(), logs.values(), strict=True)),
    ],
)
def test_who_looks_finds_numbers(look):
    loss = Computed(0.5)
    logs = BatchLogs({"loss": loss, "compiled": {"accuracy": Computed(0.25)}})
    assert (len(logs), "loss" in logs, list(logs.keys())) == (2, True, ["accuracy", "loss"])
    assert loss.reads == 0
    assert look(logs) == {"accuracy": 0.25, "loss": 0.5}
    assert loss.reads == 1


def test_logs_can_be_added_to():
    logs = BatchLogs({"loss": Computed(0.5)})
    logs["lr"] = 1.0
    assert logs == {"loss": 0.5, "lr": 1.0}
    assert not BatchLogs(None)


class Reader(keras.callbacks.Callback):
    """Reads the loss of every fourth batch."""

    def __init__(self):
        super().__init__()
        self.logs, self.losses = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(logs)
        if batch % 4 == 3:
            self.losses.append(logs["loss"])


def fitted(strategy, **kwargs):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile("sgd", "mse")
        model.optimizer.learning_rate = 0.0  # so that the loss of a row is the square of its target
    targets = np.arange(8, dtype="float32")[:, None]
    return model.fit(np.zeros((8, 1), "float32"), targets, batch_size=1, shuffle=False, **kwargs)


def test_a_callback_gets_the_loss_of_its_batch(mirrored):
    reader = Reader()
    history = fitted(mirrored, verbose=0, callbacks=[reader])
    # Means of the squares 0, 1, 4, 9 and 0 … 49.
    assert reader.losses == [3.5, 17.5]
    assert history.history["loss"] == [17.5]
    assert [float(logs["loss"]) for logs in reader.logs[:2]] == [0.0, 0.5]  # also later


@pytest.mark.parametrize("with_reader", [False, True])
def test_the_progress_bar_ends_with_the_loss_of_the_epoch(mirrored, capsys, with_reader):
    fitted(mirrored, verbose=1, callbacks=[Reader()] if with_reader else [])
    last = capsys.readouterr().out.splitlines()[-1]
    assert "8/8" in last
    assert "loss: 17.5000" in last


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_bar_of_an_epoch_of_unknown_length_counts_batches_in_order(mirrored, capsys):
    last = threading.Event()

    class SlowBar(keras.callbacks.ProgbarLogger):
        async_safe = True  # a thread draws it, as Keras' own

        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                last.wait(0.5)
            super().on_train_batch_end(batch, logs)
            if batch == 4:
                last.set()

    with mirrored.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    batches = ((np.zeros((2, 1), "float32"),) * 2 for _ in range(5))
    model.fit(batches, verbose=1, shuffle=False, callbacks=[SlowBar()])
    lines = [line for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert "5/5" in lines[-1]


def test_a_callback_that_comes_in_the_middle_of_an_epoch_hears_of_its_batches(mirrored):
    heard = []

    class Late(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            heard.append(batch)

    class Adds(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                callbacks.callbacks.append(Late())

    with mirrored.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    callbacks = keras.callbacks.CallbackList([Adds()], add_history=True, model=model)
    model.fit(np.zeros((10, 1)), np.zeros(10), batch_size=2, verbose=0, callbacks=callbacks)
    assert heard == [2, 3, 4]

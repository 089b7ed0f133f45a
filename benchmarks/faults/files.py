"""Checkpoints, backups and paths: what is not saved, killed, damaged or cannot be written."""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from killed_saves import is_whole_and_written_again, kill_while_saving
from multi_process import divided

import replicax as rx
import replicax.tf as tf
from faults.fault import Fault, Outcome
from replicax._core.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_KILLS = 50
_BITS = 10  # in each file


# Checkpoints.


def _set_later(folder: Path) -> Outcome:
    checkpoint = tf.train.Checkpoint()
    checkpoint.v = tf.Variable(3.0)
    path = checkpoint.save(str(folder / "ckpt"))
    again = tf.train.Checkpoint()
    again.v = tf.Variable(0.0)
    again.restore(path).assert_existing_objects_matched().assert_consumed()
    restored = float(again.v) == 3.0
    return Outcome("saved and restored" if restored else "not restored", restored)


def _added_after_restore(folder: Path) -> Outcome:
    path = tf.train.Checkpoint(v=tf.Variable(3.0)).save(str(folder / "ckpt"))
    again = tf.train.Checkpoint()
    again.restore(path)
    again.v = tf.Variable(0.0)
    restored = float(again.v) == 3.0
    return Outcome("restored when it is set" if restored else "not restored", restored)


def _nothing_matches(folder: Path) -> Outcome:
    path = tf.train.Checkpoint(v=tf.Variable(3.0)).save(str(folder / "ckpt"))
    try:
        status = tf.train.Checkpoint(other=tf.Variable(0.0)).restore(path)
        status.assert_existing_objects_matched()
    except UsageError as error:
        named = re.search(r"\bother\b", str(error))
        return Outcome("refused", named is not None, named=named[0] if named else "")
    return Outcome("matches", False)


def _killed_saves(folder: Path) -> Outcome:
    whole = 0
    for finished, last in kill_while_saving(folder, _KILLS):
        numbers = range(finished, finished + 2)
        whole += all(
            is_whole_and_written_again(folder / name, numbers) for name in (f"ckpt-{last}", "same")
        )
    said = f"{whole} times whole afterwards, and replaced by the next write"
    return Outcome(said, whole == _KILLS, lost="the save in progress")


def _killed_divided_saves(folder: Path) -> Outcome:
    kills = [(victim, seed) for victim in (0, 1) for seed in range(3)]
    whole = sum(divided.is_whole_after_a_kill(folder, *kill) for kill in kills)
    said = f"after {whole} of {len(kills)} the last one is whole, with the numbers of one save"
    return Outcome(said, whole == len(kills), lost="the save in progress")


# Backups.


class _Begun(keras.callbacks.Callback):
    """Keeps the epochs that begin; the history has those of the backup, too."""

    def __init__(self, end_before: int | None = None) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.end_before = end_before

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.end_before:
            raise KeyboardInterrupt
        self.epochs.append(epoch)


def _fit(folder: Path, end_before: int | None = None) -> list[int]:
    begun = _Begun(end_before)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((4, 2), "float32")
    backup = rx.callbacks.BackupAndRestore(
        folder, save_before_preemption=False, delete_checkpoint=False
    )
    model.fit(x, x[:, :1], epochs=4, verbose=0, callbacks=[backup, begun])
    return begun.epochs


def _interrupted(folder: Path) -> list[Path]:
    """Leave the backups of a `fit` that was ended in its fourth epoch, the newest last."""
    try:
        _fit(folder, end_before=3)
    except KeyboardInterrupt:
        return sorted(folder.glob("ckpt-*"))
    raise AssertionError("it was not interrupted")


def _flip(file: Path, bit: int) -> None:
    changed = bytearray(file.read_bytes())
    changed[bit // 8] ^= 1 << bit % 8
    file.write_bytes(changed)


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage()


@contextmanager
def _heard() -> Iterator[_Heard]:
    handler, logger = _Heard(), logging.getLogger("replicax")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def _flipped(folder: Path, name: str) -> Outcome:
    older, newest = _interrupted(folder)
    place = rx.train.CheckpointManager(rx.train.Checkpoint(), folder)
    file = newest / name
    bits = np.random.default_rng(0).choice(file.stat().st_size * 8, _BITS, replace=False)
    found = 0
    for bit in map(int, bits):
        _flip(file, bit)
        with _heard() as heard:
            passed_over = place.restore_or_initialize() == str(older)
            found += passed_over and newest.name in heard.text
        _flip(file, bit)
    _flip(file, int(bits[0]))
    with _heard() as heard:
        epochs = _fit(folder)
    named = newest.name if newest.name in heard.text else ""
    went_on = epochs == [2, 3]
    how = "went on from the backup before" if went_on else f"took the epochs {epochs}"
    said = f"{found} of {_BITS} flips were found; fit {how}"
    as_expected = found == _BITS and went_on and bool(named)
    return Outcome(said, as_expected, None, named, "one epoch")


def _all_flipped(folder: Path) -> Outcome:
    for backup in _interrupted(folder):
        _flip(backup / "checkpoint.json", 800)
    with _heard() as heard:
        try:
            _fit(folder)
        except CheckpointError as error:
            named = sorted(set(re.findall(r"ckpt-\d", heard.text + str(error))))
            all_named = len(named) == 2
            lost = "the epochs of both"
            return Outcome("fit refuses to begin", all_named, None, ", ".join(named), lost)
    return Outcome("restarted at epoch 0", False)


# Paths that cannot be written.


class _Steps(keras.callbacks.Callback):
    """Counts the steps of `fit`."""

    count = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1


def _fit_with(
    strategy: rx.Strategy, callback: keras.callbacks.Callback
) -> tuple[int, Exception | None]:
    """Fit; the number of steps, and the error."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    steps, x = _Steps(), np.ones((8, 2), "float32")
    try:
        model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[steps, callback])
    except Exception as error:
        return steps.count, error
    return steps.count, None


def _refused(folder: Path, make: Callable[[Path], keras.callbacks.Callback]) -> Outcome:
    (folder / "file").touch()
    (folder / "folder.keras").mkdir()
    steps, error = _fit_with(tf.distribute.OneDeviceStrategy("CPU:0"), make(folder))
    if isinstance(error, UsageError):
        return _before_the_first_step(steps, str(error), folder)
    return Outcome(f"failed: {type(error).__name__}" if error else "trained", False)


def _before_the_first_step(steps: int, said: str, folder: Path) -> Outcome:
    named = re.search(rf"{re.escape(str(folder))}/([^']*)", said)
    when = "before the first step" if not steps else "after training has begun"
    return Outcome(f"refused {when}", not steps and bool(named), None, named[1] if named else "")


def _fit_as_worker(path: str) -> tuple[int, str]:
    strategy = rx.MultiWorkerMirroredStrategy()
    steps, error = _fit_with(strategy, keras.callbacks.ModelCheckpoint(path))
    return steps, f"{type(error).__name__}: {error}" if error else ""


def _refused_by_all(folder: Path) -> Outcome:
    (folder / "file").touch()
    path = str(folder / "file" / "model.keras")
    found = rx.launch.run(_fit_as_worker, 2, args=(path,), devices_per_worker=1, timeout=120)
    (steps, said), other = found[0], found[1]
    outcome = _before_the_first_step(steps, said, folder)
    alike = (steps, said) == other and "worker 0" in said
    by_all = f"{outcome.outcome}, by both" if alike else "the workers end differently"
    return Outcome(by_all, outcome.is_as_expected and alike, None, f"worker 0, {outcome.named}")


def _older_name(folder: Path) -> Outcome:
    """TensorFlow's programs name weights so; Keras 3 alone refuses it when it saves."""
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    again = tf.keras.models.clone_model(model)
    model.save_weights(str(folder / "weights.h5"))
    again.load_weights(str(folder / "weights.h5"))
    same = all(map(np.array_equal, model.get_weights(), again.get_weights()))
    return Outcome("saved and loaded" if same else "other weights", same)


_UNWRITABLE = (
    (
        "A ModelCheckpoint is to write below a file",
        lambda folder: keras.callbacks.ModelCheckpoint(folder / "file" / "{epoch}.keras"),
    ),
    (
        "A ModelCheckpoint is to write weights below a file",
        lambda folder: keras.callbacks.ModelCheckpoint(
            folder / "file" / "w.weights.h5", save_weights_only=True
        ),
    ),
    (
        "A ModelCheckpoint has the name of a folder",
        lambda folder: keras.callbacks.ModelCheckpoint(folder / "folder.keras"),
    ),
    (
        "A CSVLogger is to write into a missing folder",
        lambda folder: keras.callbacks.CSVLogger(folder / "missing" / "log.csv"),
    ),
    (
        "BackupAndRestore has the name of a file",
        lambda folder: rx.callbacks.BackupAndRestore(folder / "file"),
    ),
    (
        "TensorBoard is to write below a file",
        lambda folder: rx.callbacks.TensorBoard(folder / "file" / "logs"),
    ),
)
FAULTS = (
    Fault("wrong numbers", "A variable is set on a Checkpoint that was made empty", _set_later),
    Fault("wrong numbers", "A variable is set on a Checkpoint after restore", _added_after_restore),
    Fault("wrong numbers", "A Checkpoint is restored that has nothing of it", _nothing_matches),
    Fault(
        "files",
        f"{_KILLS} kills while checkpoints are written and replaced",
        _killed_saves,
        "unit/train/test_files.py::test_kill_9_at_any_moment_leaves_the_last_one_whole",
    ),
    Fault(
        "files",
        "A worker is killed while two write the arrays that are divided over them",
        _killed_divided_saves,
        "multi_process/test_divided.py::test_kill_9_in_a_save_leaves_a_whole_checkpoint",
    ),
    *(
        Fault("files", f"One bit of a backup's {name} is flipped", partial(_flipped, name=name))
        for name in ("checkpoint.json", "arrays.bin")
    ),
    Fault("files", "One bit is flipped in each of two backups", _all_flipped),
    *(
        Fault(
            "files",
            what,
            partial(_refused, make=make),
            "unit/_fit/test_destinations.py::test_it_is_refused_before_the_first_step",
        )
        for what, make in _UNWRITABLE
    ),
    Fault("files", "The chief of two workers cannot write what fit is to save", _refused_by_all),
    Fault("files", "Weights are saved under a name that only Keras 2 took", _older_name),
)

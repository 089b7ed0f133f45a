"""Paths of callbacks that cannot be written are refused before the first step."""

import os
import tempfile
from pathlib import Path

import keras
import pytest

import replicax as rx
from replicax._core.errors import UsageError
from replicax._fit.destinations import Destination
from replicax._fit.trainer import install_hooks

from channels import as_workers
from fitting import ROWS, TARGETS, dense_net, made

install_hooks()
KINDS = keras.callbacks


class Steps(keras.callbacks.Callback):
    count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1


def fit(*callbacks, strategy=None, **options):
    steps = Steps()
    model = made(strategy, dense_net)
    try:
        model.fit(ROWS[:8], TARGETS[:8], **{"verbose": 0, **options}, callbacks=[steps, *callbacks])
    except UsageError as error:
        return steps.count, str(error)
    return steps.count, ""


def keras_board(folder):
    board = object.__new__(KINDS.TensorBoard)  # its constructor wants TensorFlow
    KINDS.Callback.__init__(board)
    board.set_model = lambda model: None
    board.log_dir = str(folder)
    return board


REFUSED = {
    "model below a file": lambda place: KINDS.ModelCheckpoint(place / "file" / "model.keras"),
    "model far below a file": lambda place: KINDS.ModelCheckpoint(place / "file/a/b/c.keras"),
    "model in a folder's place": lambda place: KINDS.ModelCheckpoint(place / "folder.keras"),
    "model with fields": lambda place: KINDS.ModelCheckpoint(
        place / "file" / "{epoch:02d}" / "{val_loss:.2f}.keras"
    ),
    "a field that is not closed": lambda place: KINDS.ModelCheckpoint(place / "{epoch.keras"),
    "a field without a name": lambda place: KINDS.ModelCheckpoint(place / "{}.keras"),
    "a name that is too long": lambda place: KINDS.ModelCheckpoint(place / ("x" * 300 + ".keras")),
    "weights where nothing can be made": lambda place: KINDS.ModelCheckpoint(
        "/proc/a.weights.h5", save_weights_only=True
    ),
    "weights below a file": lambda place: KINDS.ModelCheckpoint(
        place / "file" / "w.weights.h5", save_weights_only=True
    ),
    "Keras' backup": lambda place: KINDS.BackupAndRestore(place / "file"),
    "log in a missing folder": lambda place: KINDS.CSVLogger(place / "missing" / "log.csv"),
    "log in a folder's place": lambda place: KINDS.CSVLogger(place / "folder.keras"),
    "Keras' board": lambda place: keras_board(place / "file" / "board"),
    "board": lambda place: rx.callbacks.TensorBoard(place / "file" / "board"),
    "backup": lambda place: rx.callbacks.BackupAndRestore(place / "file"),
}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.keras").mkdir()
    return tmp_path


@pytest.mark.parametrize("make", REFUSED.values(), ids=list(REFUSED))
def test_it_is_refused_before_the_first_step(place, make):
    callback = make(place)
    steps, said = fit(callback)
    assert steps == 0
    assert type(callback).__name__ in said
    assert str(place) in said or "/proc" in said
    assert sorted(os.listdir(place)) == ["file", "folder.keras"]


@pytest.mark.parametrize("kind", [rx.callbacks.ReplicaMonitor, rx.callbacks.Profiler])
def test_callbacks_of_strategies_are_refused_before_the_first_step(place, mirrored, kind):
    steps, said = fit(kind(place / "file" / "logs"), strategy=mirrored)
    assert steps == 0
    assert kind.__name__ in said


def test_what_can_be_written_is_and_nothing_else(tmp_path):
    there = tmp_path / "there.weights.h5"
    there.write_text("older")
    (tmp_path / "link.keras").symlink_to(tmp_path / "new" / "target.keras")
    (tmp_path / "new").mkdir()
    steps, said = fit(
        KINDS.ModelCheckpoint(tmp_path / "models" / "{epoch:02d}-{loss:.0f}.keras"),
        KINDS.ModelCheckpoint(there, save_weights_only=True),
        KINDS.ModelCheckpoint(tmp_path / "link.keras"),
        KINDS.CSVLogger(tmp_path / "log.csv"),
        rx.callbacks.TensorBoard(tmp_path / "logs" / "run"),
    )
    assert (steps, said) == (1, "")
    assert sorted(os.listdir(tmp_path)) == [
        "link.keras",
        "log.csv",
        "logs",
        "models",
        "new",
        "there.weights.h5",
    ]
    assert os.listdir(tmp_path / "new") == ["target.keras"]


def test_what_is_there_stays_until_it_is_written(tmp_path):
    best = tmp_path / "best.keras"
    best.write_text("older")
    before = best.stat()
    Destination(str(best)).probe()
    Destination(str(tmp_path / "new" / "best.keras")).probe()
    assert best.stat() == before  # asked first: reading changes the time of access
    assert best.read_text() == "older"
    assert os.listdir(tmp_path) == ["best.keras"]


def test_pipes_and_devices_are_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    reads, writes = os.pipe()
    try:
        for path in (tmp_path / "pipe.csv", "/dev/null", f"/proc/self/fd/{writes}"):
            Destination(str(path), makes_folder=False).probe()
    finally:
        os.close(reads)
        os.close(writes)


@pytest.fixture
def somebody():
    """This process is no administrator, whom the modes of folders do not bind."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    yield
    if is_root:
        os.seteuid(0)


@pytest.fixture
def readable():
    """A folder that everybody may read, and nobody may write in."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        yield Path(folder)


def test_a_folder_that_may_only_be_read_is_refused(readable, somebody):
    with pytest.raises(PermissionError):
        Destination(str(readable / "model.keras")).probe()


def test_names_on_other_machines_are_not_looked_for(place):
    steps, said = fit(KINDS.ModelCheckpoint("gs://bucket/model.keras"), epochs=0)
    assert (steps, said) == (0, "")


def test_a_callback_that_writes_its_own_way_is_left_to_itself(place):
    class Mine(KINDS.ModelCheckpoint):
        def _save_model(self, epoch, batch, logs):
            pass

    assert fit(Mine(place / "file" / "model.keras")) == (1, "")


def test_all_workers_refuse_what_the_chief_cannot_write(place):
    # The paths of other workers are not looked at: they write nothing.
    paths = [place / "file" / "a.keras", place / "a.keras", place / "file" / "b.keras"]
    found = as_workers(3, lambda index: fit(KINDS.ModelCheckpoint(paths[index])))
    assert len(set(found)) == 1
    steps, said = found[0]
    assert steps == 0
    assert "worker 0" in said
    assert str(paths[0]) in said
    found = as_workers(2, lambda index: fit(KINDS.ModelCheckpoint(paths[1 + index])))
    assert found == [(1, ""), (1, "")]


def test_callbacks_of_the_chief_alone(place):
    def work(index):
        return fit(*[KINDS.ModelCheckpoint(place / "a.keras")] * (index == 0))

    assert as_workers(2, work) == [(1, ""), (1, "")]

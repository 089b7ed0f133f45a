"""A disk that is full: the error names the path, and half a file is not read as a whole one."""

import contextlib
import resource
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core.event_files import EventFile
from replicax._tools.commands import _write
from replicax._tools.plan.plot import draw_memory

from fitting import ROWS as INPUTS
from fitting import TARGETS, dense_net, made

ROWS = np.random.default_rng(0).normal(size=(200, 500)).astype("float32")


@contextlib.contextmanager
def no_larger_files_than(size):
    """Like a full disk, for this process: a file that grows beyond it raises an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save(path):
    rx.data.Dataset.from_tensor_slices(ROWS).save(path)


def load(path):
    return list(rx.data.Dataset.load(path))


def cache(path):
    return list(rx.data.Dataset.from_tensor_slices(ROWS).cache(path))


def write_records(path, options=None):
    with rx.data.TFRecordWriter(path, options) as writer:
        for row in ROWS:
            writer.write(row.tobytes())


def write_zipped(path):
    write_records(path, "GZIP")


def read_records(path):
    return list(rx.data.TFRecordDataset(path))


def read_zipped(path):
    return list(rx.data.TFRecordDataset(path, "GZIP"))


def write_file(path):
    tf.io.write_file(path, ROWS.tobytes())


def write_gfile(path):
    with tf.io.gfile.GFile(path, "w") as file:
        for row in ROWS:
            file.write(str(row))


def save_module(path):
    module = tf.Module()
    module.v = tf.Variable(ROWS)
    tf.saved_model.save(module, path)


def output_of_a_tool(path):
    _write(path, "x" * 2**17)


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (save, load),
        (cache, None),
        (write_records, read_records),
        (write_zipped, read_zipped),
        (write_file, None),
        (write_gfile, None),
        (save_module, tf.saved_model.load),
        (output_of_a_tool, None),
    ],
)
def test_a_full_disk_is_named(write, read, tmp_path):
    path = str(tmp_path / "here")
    with no_larger_files_than(2**16), pytest.raises(OSError, match="too large") as caught:
        write(path)
    assert caught.value.filename == path
    if read is not None:
        with pytest.raises((ValueError, OSError, rx.errors.ReplicaxError)):
            read(path)
    elif write is cache:
        assert len(cache(path)) == len(ROWS)


def test_a_full_disk_at_a_plot_of_a_plan_is_named(tmp_path):
    path = tmp_path / "plan.png"
    row = SimpleNamespace(
        memory=None, needed=0, capacity=1, fits=None, strategy="", topology="", batch=1
    )
    with no_larger_files_than(2**10), pytest.raises(OSError, match="too large") as caught:
        draw_memory(SimpleNamespace(rows=[row], name="a model"), path)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.CSVLogger,
        lambda path: keras.callbacks.ModelCheckpoint(f"{path}.keras"),
        lambda path: keras.callbacks.ModelCheckpoint(f"{path}.keras", save_freq=1),
    ],
)
def test_a_full_disk_at_a_callback_of_keras_is_noted(callback, tmp_path):
    model = made(rx.OneDeviceStrategy("CPU:0"), dense_net)
    path = tmp_path / "here"
    writer = callback(str(path))
    with no_larger_files_than(16), pytest.raises(OSError, match="too large") as caught:
        model.fit(INPUTS[:8], TARGETS[:8], callbacks=[writer], verbose=0)
    writer.on_train_end()  # closes the file
    notes = getattr(caught.value, "__notes__", ())  # none, if `replicax.tf` names the path
    assert str(path) in str(caught.value) + "".join(notes)


def test_a_full_disk_at_a_model_of_no_strategy_is_named(tmp_path):
    path = str(tmp_path / "model.keras")
    model = tf.keras.Sequential([tf.keras.Input((200,)), tf.keras.layers.Dense(200)])
    with no_larger_files_than(2**16), pytest.raises(OSError, match="too large") as caught:
        model.save(path)
    assert caught.value.filename == path


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_of_events_is_named(tmp_path):
    events = EventFile(tmp_path, 10, 120.0, "")
    with no_larger_files_than(2**10), pytest.raises(OSError, match="too large") as caught:
        for step in range(100):
            events.add("x", "scalars", ROWS[0, :1], step)
            events.flush()
    assert caught.value.filename == str(tmp_path)
    with contextlib.suppress(OSError):
        events.close()

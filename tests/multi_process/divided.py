"""Checkpoints of arrays that no worker has whole, as a program of `replicax run`: WHAT FOLDER.

Each value is that of a formula, so that any program can tell whether it has come back.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

import jax
import keras
import numpy as np

import replicax as rx
from replicax._core.errors import CheckpointError
from replicax._mesh.store import DeviceStore, zero
from replicax.train import _files

PLACES = ("alone", "shared", "thread", "gathered", "whole")
SHAPES = [(96, 48), (48, 96), (2, 12, 96), (96 * 24,), (7,), ()]


def expected(index, number=1):
    """The value of a variable after a number of changes."""
    shape = SHAPES[index]
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) + 1000 * index) * number


class Divided(rx.MultiWorkerMirroredStrategy):
    """Large variables are divided over the devices of all workers."""

    def __init__(self):
        super().__init__()
        engine = self._engine
        store = DeviceStore(zero(engine.topology, parameters=True), engine.topology)
        rx.Strategy.__init__(
            self, replace(engine, store=store), cluster_resolver=self.cluster_resolver
        )


def variables(strategy):
    with strategy.scope():
        return [keras.Variable(np.zeros(shape, "float32")) for shape in SHAPES]


def fill(made, number=1):
    for index, variable in enumerate(made):
        variable.assign(expected(index, number).astype("float32"))


def is_right(made, number=1):
    """Whether this worker's parts of all values are those of the formula."""
    found = []
    for index, variable in enumerate(made):
        for shard in variable.value.addressable_shards:
            wanted = expected(index, number)[shard.index]
            found.append(np.array_equal(np.asarray(shard.data), wanted))
    return all(found)


def comes_back(made, checkpoint, path):
    fill(made, 0)
    checkpoint.read(path)
    return is_right(made)


def note(folder, name, value):
    (folder / f"{name}-{jax.process_index()}.json").write_text(json.dumps(value))


def run(what, folder, workers, devices=1, victim=None):
    """Run a part of this program by workers, and return what it said and its exit code."""
    size = ["--workers", str(workers), "--devices-per-worker", str(devices)]
    command = [sys.executable, "-m", "replicax.launch", "run", *size, __file__, what, str(folder)]
    env = {**os.environ, "VICTIM": json.dumps(victim)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def is_whole_after_a_kill(folder, victim, seed):
    """Whether the last checkpoint is whole, with one save's numbers, when a worker was killed."""
    done = run("killed", folder, 2, victim=(victim, seed))
    path = rx.train.latest_checkpoint(folder / "kept")
    if not done.returncode or path is None:
        return False
    made = [keras.Variable(np.zeros(shape, "float32")) for shape in SHAPES]
    number = rx.train.Value(0)
    rx.train.Checkpoint(made=made, number=number).read(path)
    return number.value >= 1 and is_right(made, number.value)


def on_two_devices():
    """A strategy of one process that divides large variables."""
    return rx.MirroredStrategy(["CPU:0", "CPU:1"], shard_parameters=True)


def save_alone(folder):
    made = variables(on_two_devices())
    fill(made)
    rx.train.Checkpoint(made=made).write(folder / "alone")


def begun(folder):
    """Two workers restore that, and save: with a folder that all see, and without one."""
    made = variables(Divided())
    checkpoint = rx.train.Checkpoint(made=made)
    found = {"divided": len(made[0].value.addressable_shards[0].data) == len(expected(0)) // 2}
    found["alone"] = comes_back(made, checkpoint, folder / "alone")
    checkpoint.write(folder / "shared")
    found["shared"] = comes_back(made, checkpoint, folder / "shared")
    checkpoint.write(folder / "thread", asynchronous=True)
    fill(made, 0)  # what the thread writes is a copy
    checkpoint.wait()
    found["thread"] = comes_back(made, checkpoint, folder / "thread")
    is_other = jax.process_index() == 1
    with mock.patch.object(os.path, "isdir", lambda path: not is_other):
        checkpoint.write(folder / "gathered", asynchronous=True)
    found["gathered"] = comes_back(made, checkpoint, folder / "gathered")
    identity = (lambda path: None) if is_other else _files.identity
    with mock.patch.object(_files, "identity", identity):
        found["streamed"] = comes_back(made, checkpoint, folder / "shared")
    found["refused"] = [full(checkpoint, folder / "shared", worker) for worker in (0, 1)]
    found["full without a shared folder"] = full(
        checkpoint, folder / "shared", 0, sees=not is_other
    )
    found["kept"] = comes_back(made, checkpoint, folder / "shared")
    found["thread is full"] = full(checkpoint, folder / "shared", 1, asynchronous=True)
    note(folder, "begun", found)
    with rx.MultiWorkerMirroredStrategy().scope():
        whole = [keras.Variable(np.zeros(shape, "float32")) for shape in SHAPES]
    found["whole"] = comes_back(whole, rx.train.Checkpoint(made=whole), folder / "shared")
    rx.train.Checkpoint(made=whole).write(folder / "whole")
    found["from whole"] = comes_back(made, checkpoint, folder / "whole")
    note(folder, "begun", found)


def full(checkpoint, path, worker, *, sees=True, **options):
    """The error of a save while a worker's disk takes the first of its arrays only."""
    writes = _files.write_arrays

    def write(place, name, pieces):
        def first():
            yield next(iter(pieces))
            raise OSError(28, "No space left on device")

        return writes(place, name, first())

    patch = mock.patch.object(_files, "write_arrays", write)
    is_here = jax.process_index() == worker
    with (
        patch if is_here else mock.MagicMock(),
        mock.patch.object(os.path, "isdir", lambda _: sees),
    ):
        try:
            checkpoint.write(path, **options)
            checkpoint.wait()
        except CheckpointError as error:
            return str(error)
    return None


def restored(folder):
    """Any number of workers restores all of these."""
    made = variables(Divided())
    checkpoint = rx.train.Checkpoint(made=made)
    note(folder, "restored", {name: comes_back(made, checkpoint, folder / name) for name in PLACES})


def killed(folder):
    """Save without an end, by a thread, until a worker is killed at some moment."""
    made = variables(Divided())
    checkpoint = rx.train.Checkpoint(made=made, number=(number := rx.train.Value(0)))
    manager = rx.train.CheckpointManager(
        checkpoint, folder / "kept", max_to_keep=2, asynchronous=True
    )
    victim, seed = json.loads(os.environ["VICTIM"])
    if jax.process_index() == victim:
        moment = 0.3 + random.Random(seed).random()
        threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
    for count in itertools.count(1):
        fill(made, count)
        number.value = count
        manager.save()


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))

"""Checkpoints of arrays that no worker has whole, by real workers."""

import json

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.train import _files

from . import divided
from .divided import run

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("divided")
    divided.save_alone(folder)
    done = run("begun", folder, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def found(folder, name, worker):
    return json.loads((folder / f"{name}-{worker}.json").read_text())


@pytest.mark.parametrize("worker", [0, 1])
def test_two_workers_save_and_restore(saved, worker):
    told = found(saved, "begun", worker)
    for name in ("divided", "alone", "shared", "thread", "gathered", "streamed", "kept"):
        assert told[name] is True, name
    assert told["whole"] is True
    assert told["from whole"] is True


@pytest.mark.parametrize("worker", [0, 1])
def test_a_full_disk_of_one_is_an_error_on_all(saved, worker):
    told = found(saved, "begun", worker)
    texts = [*told["refused"], told["full without a shared folder"], told["thread is full"]]
    assert all("No space left" in text for text in texts)


def test_each_worker_writes_what_it_owns(saved):
    sizes = {name: _files.files_at(str(saved / name)).sizes() for name in ("shared", "gathered")}
    half = sum(4 * np.prod(shape) for shape in divided.SHAPES[:4]) // 2
    assert sizes["shared"]["arrays-1.bin"] == half
    assert half <= sizes["shared"]["arrays.bin"] < 1.1 * half
    assert set(sizes["gathered"]) == {"arrays.bin", "checkpoint.json"}


@pytest.mark.parametrize(("workers", "devices"), [(3, 1), (2, 3)])
def test_another_number_of_workers_restores(saved, workers, devices):
    done = run("restored", saved, workers, devices)
    assert done.returncode == 0, done.stdout + done.stderr
    for worker in range(workers):
        assert all(found(saved, "restored", worker).values())


def test_a_process_without_a_cluster_restores(saved):
    whole = [keras.Variable(np.zeros(shape, "float32")) for shape in divided.SHAPES]
    for made in (whole, divided.variables(divided.on_two_devices())):
        checkpoint = rx.train.Checkpoint(made=made)
        for name in divided.PLACES:
            assert divided.comes_back(made, checkpoint, saved / name)
    value = rx.train.load_variable(saved / "shared", "made/1/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_array_equal(value, divided.expected(1))


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_in_a_save_leaves_a_whole_checkpoint(tmp_path, victim):
    for seed in range(3):
        assert divided.is_whole_after_a_kill(tmp_path, victim, seed)
        assert len(rx.train.all_checkpoints(tmp_path / "kept")) <= 3

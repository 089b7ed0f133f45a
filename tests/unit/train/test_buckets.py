"""Checkpoints by URL, in the memory that fsspec offers for tests and in files of this machine."""

import sys

import fsspec
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import CheckpointError, UsageError
from replicax.train import _files


@pytest.fixture(params=["memory://", "file://"])
def url(request, tmp_path):
    place = f"{request.param}{tmp_path}/run"
    yield place
    system, root = fsspec.core.url_to_fs(place)
    if system.exists(root):
        system.rm(root, recursive=True)


def saved(url, value, **options):
    total, step = keras.Variable(np.full(5, value, "float32")), rx.train.Value(int(value))
    checkpoint = rx.train.Checkpoint(total=total, step=step)
    return total, step, rx.train.CheckpointManager(checkpoint, url, max_to_keep=2, **options)


def test_the_last_few_are_kept_and_restored(url):
    total, step, manager = saved(url, 1.0)
    for number in range(1, 5):
        total.assign(np.full(5, float(number)))
        step.value = number
        assert manager.save() == f"{url}/ckpt-{number}"
    assert manager.checkpoints == [f"{url}/ckpt-3", f"{url}/ckpt-4"]
    assert rx.train.latest_checkpoint(url) == f"{url}/ckpt-4"
    other, its_step, again = saved(url, 9.0)
    assert again.restore_or_initialize() == f"{url}/ckpt-4"
    np.testing.assert_array_equal(other.numpy(), np.full(5, 4.0))
    assert its_step.value == 4
    names = dict(rx.train.list_variables(f"{url}/ckpt-3"))
    assert names["total/.ATTRIBUTES/VARIABLE_VALUE"] == [5]


def test_one_is_replaced_by_a_thread(url):
    total, _, manager = saved(url, 1.0)
    checkpoint = manager.checkpoint
    for value in (1.0, 2.0):
        total.assign(np.full(5, value))
        checkpoint.write(f"{url}/same", asynchronous=True)
        total.assign(np.zeros(5))
    checkpoint.wait()
    checkpoint.read(f"{url}/same")
    np.testing.assert_array_equal(total.numpy(), np.full(5, 2.0))
    assert len(_files.files_at(f"{url}/same").sizes()) == 2  # those of the first are gone


def test_a_save_that_fails_leaves_the_one_before(url, monkeypatch):
    total, _, manager = saved(url, 1.0)
    manager.checkpoint.write(f"{url}/same")

    def full(self, path, *args, **kwargs):
        raise OSError(28, "No space left on device")

    system, _ = fsspec.core.url_to_fs(url)
    with monkeypatch.context() as patched:
        patched.setattr(type(system), "open", full)
        with pytest.raises(CheckpointError, match="No space left"):
            manager.checkpoint.write(f"{url}/same")
    total.assign(np.zeros(5))
    manager.checkpoint.read(f"{url}/same")
    np.testing.assert_array_equal(total.numpy(), np.ones(5))


def test_without_its_description_there_is_no_checkpoint(url):
    _, _, manager = saved(url, 1.0)
    manager.save()
    newest = manager.save()
    _files.files_at(newest).remove({_files.MANIFEST})
    assert rx.train.latest_checkpoint(url) == f"{url}/ckpt-1"
    manager.save()  # goes on from the number that counts
    assert rx.train.latest_checkpoint(url) == newest


def test_a_flipped_bit_is_found(url):
    total, _, manager = saved(url, 1.0)
    files = _files.files_at(manager.save())
    (name,) = set(files.sizes()) - {_files.MANIFEST}
    changed = bytearray(files.read(name))
    changed[3] ^= 1
    with files.create(name) as file:
        file.write(changed)
    total.assign(np.zeros(5))
    with pytest.raises(CheckpointError, match="damaged"):
        manager.restore_or_initialize()
    np.testing.assert_array_equal(total.numpy(), np.zeros(5))


def test_other_objects_are_left_alone(url):
    _, _, manager = saved(url, 1.0)
    with fsspec.open(f"{url}/mine/notes.txt", "w") as file:
        file.write("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        manager.checkpoint.write(f"{url}/mine")


@pytest.mark.parametrize(
    ("path", "named"), [("s4://bucket/run", "s4"), ("dask://x/y", "distributed")]
)
def test_a_store_without_a_driver_says_so_in_a_few_lines(path, named):
    with pytest.raises(UsageError, match=named):
        saved(path, 1.0)[2].save()


def test_without_fsspec_a_path_on_the_disk_is_fine(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert saved(str(tmp_path), 1.0)[2].save() == f"{tmp_path}/ckpt-1"
    with pytest.raises(UsageError, match="pip install fsspec"):
        saved("memory://run", 1.0)[2].save()


def test_files_of_somebody_else_stay(url):
    system, root = fsspec.core.url_to_fs(url)
    system.makedirs(root, exist_ok=True)
    system.pipe_file(f"{root}/arrays.npy", b"mine")
    with pytest.raises(UsageError, match="arrays.npy"):
        rx.train.Checkpoint(total=keras.Variable(1.0)).write(url)
    assert system.cat_file(f"{root}/arrays.npy") == b"mine"


def test_a_replaced_checkpoint_leaves_the_files_of_others(url):
    checkpoint = rx.train.Checkpoint(total=keras.Variable(1.0))
    checkpoint.write(url)
    system, root = fsspec.core.url_to_fs(url)
    system.pipe_file(f"{root}/notes.txt", b"mine")
    checkpoint.write(url)
    names = {path.rpartition("/")[2] for path in system.ls(root, detail=False)}
    assert "notes.txt" in names
    assert sum(name.startswith("arrays") for name in names) == 1


def test_a_reader_keeps_what_it_has_opened(url):
    total = keras.Variable(1.0)
    checkpoint = rx.train.Checkpoint(total=total)
    reader = rx.train.load_checkpoint(checkpoint.write(url))
    total.assign(2.0)
    checkpoint.write(url)
    assert reader.get_tensor("total/.ATTRIBUTES/VARIABLE_VALUE") == 1.0

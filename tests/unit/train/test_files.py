import json
import os
import subprocess
import sys
import threading
import time
import zlib

import jax.numpy as jnp
import numpy as np
import pytest
from killed_saves import is_whole_and_written_again, kill_while_saving

from replicax._core import folder
from replicax._core.errors import CheckpointError, UsageError
from replicax.train import _files

ARRAYS = {
    "float": np.arange(6, dtype="float32").reshape(2, 3),
    "scalar": np.array(3, "int64"),
    "brain": np.asarray(jnp.arange(5, dtype="bfloat16")),
    "eight": np.asarray(jnp.ones((2, 2), "float8_e4m3fn")),
    "flag": np.array([True, False]),
    "none": np.zeros((0, 4), "uint32"),
}


def write(path, arrays=None, **body):
    arrays = ARRAYS if arrays is None else arrays
    _files.write(str(path), body, [_files.whole(*item) for item in arrays.items()])


def read(path):
    content = _files.opened(str(path))
    for name in content.arrays:
        content.arrays.check(name)
    return content


def test_arrays_of_all_types_come_back(tmp_path):
    write(tmp_path / "ckpt-1", step=3)
    content = read(tmp_path / "ckpt-1")
    assert content.body == {"step": 3}
    for name, array in ARRAYS.items():
        found = content.arrays[name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()


def test_a_checkpoint_is_replaced(tmp_path):
    path = tmp_path / "one"
    write(path, step=1)
    write(path, step=2)
    assert read(path).body == {"step": 2}
    assert os.listdir(tmp_path) == ["one"]


def test_one_that_was_put_aside_is_found(tmp_path):
    # Killed between the two renames of a replacement.
    write(tmp_path / "one", step=1)
    os.rename(tmp_path / "one", tmp_path / ".one.replaced")
    assert read(tmp_path / "one").body == {"step": 1}
    folder.recover(tmp_path / "one")
    assert os.listdir(tmp_path) == ["one"]


def test_one_that_was_not_removed_after_its_replacement_is_in_nobodys_way(tmp_path):
    # Killed behind the two renames of a replacement.
    write(tmp_path / "one", step=1)
    os.rename(tmp_path / "one", tmp_path / ".one.replaced")
    write(tmp_path / ".whole", step=2)
    os.rename(tmp_path / ".whole", tmp_path / "one")
    write(tmp_path / "one", step=3)
    assert read(tmp_path / "one").body == {"step": 3}
    assert os.listdir(tmp_path) == ["one"]


@pytest.mark.parametrize("name", ["", "notes.txt"])
def test_what_is_no_checkpoint_is_not_replaced(tmp_path, name):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        write(tmp_path / name)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_no_checkpoint_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="none.*`checkpoint.json`"):
        read(tmp_path / "none")


def test_damage_behind_an_empty_array_is_found(tmp_path):
    arrays = {"a": np.ones(2), "none": np.ones((0, 4)), "z": np.ones(3)}
    write(tmp_path / "one", arrays)
    file = tmp_path / "one" / _files.ARRAYS
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    file.write_bytes(changed)
    with pytest.raises(CheckpointError, match=_files.ARRAYS):
        read(tmp_path / "one")


def test_every_flipped_bit_is_found(tmp_path):
    write(tmp_path / "one", step=1, rate=1e-5)
    for name in (_files.MANIFEST, _files.ARRAYS):
        file = tmp_path / "one" / name
        whole = file.read_bytes()
        for bit in range(8 * len(whole)):
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            file.write_bytes(changed)
            with pytest.raises(CheckpointError, match=name):
                read(tmp_path / "one")
        file.write_bytes(whole)
    assert read(tmp_path / "one").body == {"step": 1, "rate": 1e-5}


def test_checkpoints_of_older_versions_are_whole(tmp_path):
    write(tmp_path / "one", step=1)
    file = tmp_path / "one" / _files.MANIFEST
    found = json.loads(file.read_text())
    text = json.dumps(found["body"], sort_keys=True)
    found["checksum"] = f"{zlib.crc32(text.encode()):08x}-{'0' * 32}"
    file.write_text(json.dumps(found, indent=1))
    assert read(tmp_path / "one").body == {"step": 1}


def test_a_short_file_is_no_checkpoint(tmp_path):
    write(tmp_path / "one")
    with open(tmp_path / "one" / _files.ARRAYS, "r+b") as file:
        file.truncate(10)
    assert _files.located(str(tmp_path / "one")) is None


def test_what_fails_leaves_nothing(tmp_path, monkeypatch):
    write(tmp_path / "ckpt-1", step=1)

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "ckpt-1", step=2)
    assert os.listdir(tmp_path) == ["ckpt-1"]
    assert read(tmp_path / "ckpt-1").body == {"step": 1}


def test_kill_9_at_any_moment_leaves_the_last_one_whole(tmp_path):
    before = 0
    for finished, last in kill_while_saving(tmp_path, 50):
        assert last >= finished > before
        before = last
        for name in (f"ckpt-{last}", "same"):
            assert is_whole_and_written_again(tmp_path / name, range(finished, finished + 2))


def test_leftovers_of_killed_saves_are_removed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    host = folder.socket.gethostname()
    names = [f".ckpt-7.partial-{host}-{ended.pid}-12345678", f".other-7.partial-{host}-1-12345678"]
    alive = f".ckpt-8.partial-{host}-{os.getppid()}-12345678"
    for name in [*names, alive]:
        (tmp_path / name).mkdir()
    write(tmp_path / "ckpt-9")
    assert set(os.listdir(tmp_path)) == {names[1], alive, "ckpt-9"}


def test_a_leftover_with_the_number_of_this_process_is_removed(tmp_path):
    # In a container every start of a program has the same number.
    host = folder.socket.gethostname()
    (tmp_path / f".ckpt-7.partial-{host}-{os.getpid()}-12345678").mkdir()
    write(tmp_path / "ckpt-8")
    assert os.listdir(tmp_path) == ["ckpt-8"]


def test_what_another_host_writes_is_removed_after_an_hour_without_a_change(tmp_path):
    place = tmp_path / ".ckpt-7.partial-some-host-1-12345678"
    place.mkdir()
    (place / _files.ARRAYS).write_bytes(b"x")
    long_ago = time.time() - 3700
    os.utime(place, (long_ago, long_ago))
    write(tmp_path / "ckpt-8")
    assert place.exists()  # a file in it is new
    os.utime(place / _files.ARRAYS, (long_ago, long_ago))
    write(tmp_path / "ckpt-9")
    assert not place.exists()


@pytest.mark.parametrize(
    ("left", "written", "removed"),
    [
        ("ckpt", "ckpt", True),
        ("ckpt-1", "ckpt-2", True),
        ("ckpt-1", "ckpt", True),
        ("my-model", "my-model", True),
        ("a[1]+-1", "a[1]+-2", True),
        ("ckpt_best-1", "ckpt-2", False),
        ("ckpt-best-1", "ckpt-2", False),
        ("ckpt-2.old", "ckpt-2", False),
        ("my-model", "my-other", False),
    ],
)
def test_leftovers_are_those_of_the_same_name(tmp_path, left, written, removed):
    place = tmp_path / f".{left}.partial-{folder.socket.gethostname()}-{os.getpid()}-12345678"
    place.mkdir()
    write(tmp_path / written)
    assert place.exists() != removed


def test_threads_leave_each_other_what_they_write(tmp_path, monkeypatch):
    begun, may_end, errors = threading.Event(), threading.Event(), []
    write_arrays = _files.write_arrays

    def slow(path, *pieces):
        entries = write_arrays(path, *pieces)
        if ".ckpt-1." in str(path):
            begun.set()
            assert may_end.wait(60)
        return entries

    def first():
        try:
            write(tmp_path / "ckpt-1", step=1)
        except OSError as error:
            errors.append(error)

    monkeypatch.setattr(_files, "write_arrays", slow)
    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(60)
    write(tmp_path / "ckpt-2", step=2)
    may_end.set()
    thread.join()
    assert not errors
    assert sorted(os.listdir(tmp_path)) == ["ckpt-1", "ckpt-2"]
    assert folder._being_written == set()

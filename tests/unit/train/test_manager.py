import os
import threading

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import CheckpointError, UsageError
from replicax.train import _files

from channels import as_workers


def manager(folder, value=0, **options):
    step = rx.train.Value(value)
    return step, rx.train.CheckpointManager(rx.train.Checkpoint(step=step), folder, **options)


def test_the_last_few_stay(tmp_path):
    step, kept = manager(tmp_path, max_to_keep=2)
    paths = [kept.save() for step.value in range(4)]
    assert kept.checkpoints == paths[2:] == [f"{tmp_path}/ckpt-3", f"{tmp_path}/ckpt-4"]
    assert sorted(os.listdir(tmp_path)) == ["ckpt-3", "ckpt-4"]
    assert kept.latest_checkpoint == rx.train.latest_checkpoint(tmp_path) == paths[3]


def test_a_model_is_no_checkpoint(tmp_path):
    with pytest.raises(UsageError, match=r"Checkpoint\(model=model\)"):
        rx.train.CheckpointManager(keras.Sequential([keras.layers.Dense(1)]), tmp_path)


def test_all_stay(tmp_path):
    _, kept = manager(tmp_path, max_to_keep=None)
    for _ in range(7):
        kept.save()
    assert len(kept.checkpoints) == 7


def test_numbers_of_the_user(tmp_path):
    _, kept = manager(tmp_path)
    assert kept.save(100) == f"{tmp_path}/ckpt-100"
    kept.save(100)
    assert kept.save(1000) == kept.latest_checkpoint
    with pytest.raises(UsageError, match="checkpoint_number.*1000.*got 7"):
        kept.save(7)


def test_restore_or_initialize(tmp_path):
    called = []
    step, kept = manager(tmp_path, init_fn=lambda: called.append(1))
    assert kept.restore_or_initialize() is None
    assert called == [1]
    step.value = 5
    path = kept.save()
    fresh, again = manager(tmp_path, init_fn=lambda: called.append(2))
    assert again.restore_or_initialize() == path
    assert fresh.value == 5
    assert called == [1]


def test_a_damaged_one_is_passed_over(tmp_path, caplog):
    step, kept = manager(tmp_path, value=1)
    older = kept.save()
    newer = kept.save()
    with open(f"{newer}/arrays.bin", "ab") as file:
        file.write(b"more")
    assert kept.latest_checkpoint == older
    assert kept.restore_or_initialize() == older


def test_asynchronous(tmp_path):
    step, kept = manager(tmp_path, max_to_keep=1, asynchronous=True)
    for step.value in range(3):
        kept.save()
    kept.wait()
    fresh, again = manager(tmp_path)
    again.restore_or_initialize()
    assert fresh.value == 2
    assert os.listdir(tmp_path) == ["ckpt-3"]


def test_max_to_keep_is_positive(tmp_path):
    with pytest.raises(UsageError, match="max_to_keep.*got 0"):
        manager(tmp_path, max_to_keep=0)


def test_folders_of_the_chief_decide(tmp_path):
    manager(tmp_path / "0", value=4)[1].save(12)

    def work(index):
        step, kept = manager(tmp_path / str(index))
        restored = kept.restore_or_initialize()
        kept.save()
        return step.value, bool(restored)

    assert as_workers(2, work) == [(4, True), (4, True)]
    assert sorted(os.listdir(tmp_path / "0")) == ["ckpt-12", "ckpt-13"]
    assert os.listdir(tmp_path / "1") == []  # for programs that remove what a worker wrote


def test_no_checkpoints():
    assert rx.train.latest_checkpoint("/nowhere") is None


def test_managers_in_one_folder_leave_each_other_what_they_write(tmp_path, monkeypatch):
    begun, may_end, write_arrays = threading.Event(), threading.Event(), _files.write_arrays

    def slow(path, *pieces):
        entries = write_arrays(path, *pieces)
        if "ckpt_best" in str(path):
            begun.set()
            assert may_end.wait(60)
        return entries

    monkeypatch.setattr(_files, "write_arrays", slow)
    _, best = manager(tmp_path, checkpoint_name="ckpt_best", asynchronous=True)
    _, regular = manager(tmp_path, asynchronous=True)
    best.save()
    assert begun.wait(60)
    regular.save()
    regular.wait()
    may_end.set()
    best.wait()
    assert sorted(os.listdir(tmp_path)) == ["ckpt-1", "ckpt_best-1"]


def test_checkpoints_by_steps(tmp_path):
    step, kept = manager(tmp_path)
    kept = rx.train.CheckpointManager(
        kept.checkpoint, tmp_path, max_to_keep=None, step_counter=step, checkpoint_interval=3
    )
    saved = []
    for step.value in range(8):
        saved.append(kept.save())
    assert [n for n, path in enumerate(saved) if path] == [0, 3, 6]
    assert kept.save(check_interval=False) is not None
    with pytest.raises(UsageError, match="checkpoint_interval=3.*step_counter"):
        manager(tmp_path, checkpoint_interval=3)


def test_older_ones_hours_apart_stay(tmp_path):
    _, kept = manager(tmp_path, max_to_keep=1, keep_checkpoint_every_n_hours=2)
    for hour in range(6):
        path = kept.save()
        os.utime(os.path.join(path, _files.MANIFEST), (0, hour * 3600))
    # Hours 0, 2 and 4 are two hours apart; 5 is the newest.
    assert [os.path.basename(path) for path in kept.checkpoints] == [
        f"ckpt-{n}" for n in (1, 3, 5, 6)
    ]


def test_options_of_tensorflow(tmp_path):
    heard = []
    calls = [heard.append, lambda: heard.append("written")]
    options = rx.train.CheckpointOptions(experimental_write_callbacks=calls, enable_async=True)
    _, kept = manager(tmp_path)
    path = kept.save(options=options)
    kept.sync()
    assert heard == [path, "written"]


def test_iterator_over_checkpoints(tmp_path):
    _, kept = manager(tmp_path)
    first = kept.save()
    asked = []

    def is_enough():
        asked.append(len(asked))
        if len(asked) == 1:
            kept.save()
        return len(asked) == 2

    found = list(rx.train.checkpoints_iterator(tmp_path, timeout=0, timeout_fn=is_enough))
    assert found == [first, kept.latest_checkpoint]
    assert rx.train.all_checkpoints(tmp_path) == found


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("file", ["checkpoint.json", "arrays.bin"])
def test_a_flipped_bit_anywhere_is_noticed_and_the_one_before_is_used(tmp_path, caplog, file):
    bits = np.random.default_rng(0)
    for trial in range(20):
        folder = tmp_path / str(trial)
        step, weights = rx.train.Value(0), keras.Variable(np.zeros(3, "float32"))
        manager = rx.train.CheckpointManager(
            rx.train.Checkpoint(step=step, weights=weights), folder
        )
        for step.value in (1, 2):
            weights.assign(np.full(3, step.value))
            newest = manager.save()
        place = folder / "ckpt-2" / file
        flip(place, int(bits.integers(8 * place.stat().st_size)))
        caplog.clear()
        restored = manager.restore_or_initialize()
        # A bit of the layout, or of the part of the checksum that only names the file, is no loss.
        assert (step.value, list(weights.numpy())) in [(1, [1] * 3), (2, [2] * 3)]
        assert (step.value == 2) == (restored == newest)
        assert (step.value == 1) == ("ckpt-2" in caplog.text)
        if file == "arrays.bin":
            assert step.value == 1


def test_only_damaged_checkpoints_are_an_error(tmp_path):
    manager = rx.train.CheckpointManager(rx.train.Checkpoint(step=rx.train.Value(1)), tmp_path)
    manager.save()
    (tmp_path / "ckpt-1" / "checkpoint.json").write_text("{}")
    with pytest.raises(CheckpointError, match="ckpt-1"):
        manager.restore_or_initialize()
    assert manager.latest_checkpoint is None
    manager.save()  # a new one may take the place of one that is damaged
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-1")

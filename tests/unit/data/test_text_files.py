"""`text_dataset_from_directory` and `timeseries_dataset_from_array`."""

import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    for label in ("bad", "good"):
        (tmp_path / label).mkdir()
        for number in range(5):
            (tmp_path / label / f"{number}.txt").write_text(f"{label} {number} é", "utf-8")
    (tmp_path / "good" / "picture.png").write_bytes(b"no text")
    return tmp_path


def test_texts_have_the_labels_of_their_folders(folder):
    made = rx.data.text_dataset_from_directory(folder, shuffle=False, batch_size=None, max_length=6)
    rows = list(made)
    assert made.class_names == ["bad", "good"]
    assert [text for text, _ in rows[:2]] == ["bad 0 ", "bad 1 "]
    assert [int(label) for _, label in rows] == [0] * 5 + [1] * 5


def test_texts_are_split(folder):
    both = rx.data.text_dataset_from_directory(
        folder, validation_split=0.2, subset="both", seed=3, label_mode=None
    )
    parts = [{text for batch in part for text in batch} for part in both]
    assert [len(part) for part in parts] == [8, 2]
    assert not parts[0] & parts[1]


def test_a_folder_without_texts_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"\.txt.*validation_split"):
        rx.data.text_dataset_from_directory(tmp_path, labels=None)


def test_windows_over_time():
    # Keras 3.15: rows 0, 2, 4 of a window; every second window.
    made = rx.data.timeseries_dataset_from_array(np.arange(10), np.arange(10) * 10, 3, 2, 2)
    ((windows, targets),) = made
    assert windows.tolist() == [[0, 2, 4], [2, 4, 6], [4, 6, 8]]
    assert targets.tolist() == [0, 20, 40]


def test_a_part_of_time():
    made = rx.data.timeseries_dataset_from_array(
        np.arange(10), np.arange(10), 2, start_index=4, end_index=8, batch_size=None
    )
    assert [(w.tolist(), int(t)) for w, t in made] == [([4, 5], 4), ([5, 6], 5), ([6, 7], 6)]

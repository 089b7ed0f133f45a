"""The files of a comparison."""

from __future__ import annotations

import json

import pytest

import replicax as rx
from replicax.report import save

from helpers import uninstall

PICTURES = ("page", "plots")


def test_five_files_are_written_into_a_new_folder(tmp_path, sample):
    files = save(sample(), tmp_path / "a" / "b")
    assert {file.name for file in files} == {
        "report.html",
        "compare.md",
        "compare.json",
        "accuracy.png",
        "throughput.png",
    }
    assert all(file.stat().st_size > 0 for file in files)


def test_pictures_need_matplotlib(tmp_path, sample, monkeypatch):
    uninstall(monkeypatch, "matplotlib", *(f"replicax._tools.compare.{m}" for m in PICTURES))
    with pytest.raises(rx.errors.UsageError, match=r"pip install 'replicax\[report\]'"):
        save(sample(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_older_files_are_replaced(tmp_path, sample):
    save(sample(difference=0.5), tmp_path)
    save(sample(difference=0.25), tmp_path)
    data = json.loads((tmp_path / "compare.json").read_text())
    assert data["measurements"][1]["weight_difference"] == 0.25


def test_a_file_in_place_of_the_folder_is_refused(tmp_path, sample):
    (tmp_path / "report").write_text("mine")
    with pytest.raises(rx.errors.UsageError, match="File exists.*--output"):
        save(sample(), tmp_path / "report")

"""What a strategy's arguments say about keeping the state of servers."""

import os
import stat
import tempfile

import pytest

from replicax._core.errors import UsageError
from replicax._ps.hosts.member import ServerNode
from replicax._ps.start import keeping, name_folder

USUAL = {"snapshot_dir": None, "snapshot_seconds": 30.0, "replicas": 0, "num_servers": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"snapshot_seconds": -1}, "`snapshot_seconds`.*got -1"),
        ({"replicas": 2}, "`replicas`.*got 2"),
        ({"replicas": 1, "num_servers": 1}, "`num_ps=2`"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        keeping(**{**USUAL, **arguments})


def test_each_run_has_a_name_and_a_folder_that_servers_make():
    settings, other = keeping(**USUAL), keeping(**USUAL)
    assert settings["run"] != other["run"]
    folder = name_folder(settings, "/somewhere")
    assert folder == settings["snapshot_dir"]
    assert os.path.dirname(folder) == "/somewhere" and settings["run"] in folder


def test_the_folder_that_servers_make_is_closed_to_others(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = keeping(**USUAL)
    name_folder(settings)
    before = os.umask(0)
    try:
        node = ServerNode(0, bytes(32), settings).begin()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(settings["snapshot_dir"]).st_mode) == 0o700
    node.abandon()
    assert not os.path.exists(settings["snapshot_dir"])


def test_a_folder_of_the_user_is_his(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    settings = keeping(**{**USUAL, "snapshot_dir": "kept"})
    assert settings["snapshot_dir"] == str(tmp_path / "kept")  # servers may run elsewhere
    assert name_folder(settings) is None
    assert settings["snapshot_dir"] == str(tmp_path / "kept") and settings["is_kept"]


def test_without_snapshots_there_is_no_folder():
    settings = keeping(**{**USUAL, "snapshot_seconds": None})
    assert name_folder(settings) is None
    assert settings["snapshot_dir"] is None

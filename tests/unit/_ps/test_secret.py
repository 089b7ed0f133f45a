"""Where the secret of a cluster comes from, and who can read it."""

import os
import re
import stat
import threading

import pytest

import replicax as rx
from replicax._ps.hosts.given_cluster import cluster_secret, host_of
from replicax.cluster_resolver import ClusterSpec

HERE = ClusterSpec({"ps": ["localhost:1"], "worker": ["127.0.0.1:2", "[::1]:3"]})
ELSEWHERE = ClusterSpec({"ps": ["localhost:1"], "worker": ["192.0.2.1:2"]})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("RX_CLUSTER_SECRET", "RX_CLUSTER_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "replicax"


def test_the_environment_comes_first(folder, monkeypatch):
    monkeypatch.setenv("RX_CLUSTER_SECRET", " what all of them know ")
    assert cluster_secret(ELSEWHERE) == b"what all of them know"
    assert not folder.exists()


@pytest.mark.parametrize(
    ("given", "error"), [(b"abc", rx.errors.UsageError), (b"\xff" * 32, rx.errors.ClusterSpecError)]
)
def test_a_secret_is_a_text_that_nobody_guesses(folder, monkeypatch, given, error):
    monkeypatch.setenv("RX_CLUSTER_SECRET", os.fsdecode(given))
    with pytest.raises(error):
        cluster_secret(HERE)


def test_a_file_is_one_in_which_the_secret_stays(folder, monkeypatch, tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path, 0o600)
    monkeypatch.setenv("RX_CLUSTER_SECRET_FILE", str(path))
    with pytest.raises(rx.errors.ClusterSpecError, match="regular file"):  # it does not wait
        cluster_secret(HERE)


def test_on_one_machine_it_is_in_a_file_of_this_user(folder):
    found = cluster_secret(HERE)
    assert re.fullmatch(rb"[0-9a-f]{64}", found)
    assert cluster_secret(HERE) == found
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_those_who_start_together_find_the_same(folder):
    found, start = [], threading.Barrier(8)

    def find():
        start.wait()
        found.append(cluster_secret(HERE))

    threads = [threading.Thread(target=find) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 8


def test_a_file_that_others_could_read_is_refused(folder):
    cluster_secret(HERE)
    (file,) = folder.iterdir()
    file.chmod(0o644)
    with pytest.raises(rx.errors.ClusterSpecError, match=r"mode 644"):
        cluster_secret(HERE)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with the secret, which the environment names."""
    path = tmp_path / "given"
    path.write_text("what all of them know\n")
    path.chmod(0o600)
    monkeypatch.setenv("RX_CLUSTER_SECRET_FILE", str(path))
    return path


def test_the_environment_may_name_a_file(folder, file):
    assert cluster_secret(ELSEWHERE) == b"what all of them know"
    assert not folder.exists()


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660])
def test_a_file_of_the_environment_is_its_users_alone(folder, file, mode):
    file.chmod(mode)
    with pytest.raises(rx.errors.ClusterSpecError, match=f"{file}.* mode {mode:o}"):
        cluster_secret(ELSEWHERE)


@pytest.mark.parametrize("spoil", [lambda file: file.write_text(" "), lambda file: file.unlink()])
def test_a_file_of_the_environment_has_a_secret(folder, file, spoil):
    spoil(file)
    with pytest.raises(rx.errors.ClusterSpecError, match=str(file)):
        cluster_secret(ELSEWHERE)


def test_a_place_that_cannot_be_written_is_told(folder):
    folder.write_text("a file, where the folder should be")
    with pytest.raises(rx.errors.ClusterSpecError, match="RX_CLUSTER_SECRET"):
        cluster_secret(HERE)


def test_several_machines_need_it_in_the_environment(folder):
    with pytest.raises(
        rx.errors.ClusterSpecError, match=r"worker 0 is on another machine\. .*token_hex"
    ):
        cluster_secret(ELSEWHERE)
    assert not folder.exists()


def test_the_host_of_ipv6_has_no_brackets():
    assert host_of(HERE, "worker", 1) == "::1"

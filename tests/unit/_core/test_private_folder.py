"""Folders whose files run as code: who may write to them, up to the root."""

from __future__ import annotations

import os

import pytest

from replicax._core.compilation_cache import InsecureFolder, private_folder


@pytest.mark.parametrize("place", ["", "inside"])
def test_a_folder_that_others_can_write_to_is_not_used(place, tmp_path):
    made = private_folder(tmp_path / "new" / "cache", "inside")
    assert [path.stat().st_mode & 0o777 for path in (made, made.parent)] == [0o700, 0o700]
    assert private_folder(made.parent, "inside") == made
    (made.parent / place).chmod(0o770)
    with pytest.raises(InsecureFolder) as refused:
        private_folder(made.parent, "inside")
    assert refused.value.path == made.parent / place


def test_folders_that_it_makes_are_closed_whatever_the_umask(tmp_path):
    before = os.umask(0o002)
    try:
        made = private_folder(tmp_path / "home" / ".cache" / "replicax", "inside")
    finally:
        os.umask(before)
    above = [made, *made.parents[:3]]
    assert [path.stat().st_mode & 0o777 for path in above] == [0o700] * 4


def test_a_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(InsecureFolder):
        private_folder(tmp_path, "inside")


def test_who_can_write_above_could_put_another_folder_there(tmp_path):
    private_folder(tmp_path / "open" / "cache", "inside")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InsecureFolder) as refused:
        private_folder(tmp_path / "open" / "cache", "inside")
    assert refused.value.path == tmp_path / "open"
    (tmp_path / "open").chmod(0o1777)  # as /tmp: nobody else can move what is in it
    private_folder(tmp_path / "open" / "cache", "inside")


def test_a_link_is_as_safe_as_where_it_is_and_where_it_leads(tmp_path):
    for name in ("open", "closed"):
        (tmp_path / name / "cache").mkdir(parents=True, mode=0o700)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "closed" / "link").symlink_to(tmp_path / "open" / "cache")
    (tmp_path / "open" / "link").symlink_to(tmp_path / "closed" / "cache")
    for link in ("closed/link", "open/link"):
        with pytest.raises(InsecureFolder) as refused:
            private_folder(tmp_path / link, "inside")
        assert refused.value.path == tmp_path / "open"


def test_what_others_can_have_written_goes_before_the_folder_is_closed(tmp_path):
    inside = tmp_path / "cache" / "inside"
    inside.mkdir(parents=True)
    inside.parent.chmod(0o755)
    inside.chmod(0o755)
    for name, mode in [("mine", 0o644), ("theirs", 0o664)]:
        (inside / name).touch()
        (inside / name).chmod(mode)
    private_folder(inside.parent, "inside")
    assert [path.name for path in inside.iterdir()] == ["mine"]
    assert inside.stat().st_mode & 0o777 == 0o700

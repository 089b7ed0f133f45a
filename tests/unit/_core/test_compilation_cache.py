"""Compiled programs on disk: what the second start compiles, where they are, who may write."""

import logging
import os
from pathlib import Path

import jax
import pytest

import replicax as rx
from replicax._core.env import compilation_cache_folder
from replicax._core.machine import compilation_cache
from replicax._core.machine.compilation_cache import InsecureFolder, private_folder

from helpers import run_python

PROGRAM = """
    import collections
    import jax
    import replicax as rx

    happened = collections.Counter()
    jax.monitoring.register_event_listener(lambda event, **_: happened.update([event]))
    rx.testing.virtual_devices(2)
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    x, y = np.ones((10, 4), "float32"), np.ones((10, 1), "float32")
    with strategy.scope():
        layers = [keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("adam", "mse", metrics=["mae"])
        count = keras.Variable(0.0, aggregation="sum")
    losses = model.fit(x, y, batch_size=4, epochs=2, verbose=0, validation_data=(x, y)).history
    model.predict(x, verbose=0)
    (batch,) = strategy.experimental_distribute_dataset([x])
    step = rx.function(lambda: strategy.run(lambda x: count.assign_add(model(x).sum()), (batch,)))
    # By a kernel, which the program refers to by its name.
    rows = lambda: keras.ops.take(np.ones((9, 8), "float32"), np.arange(900) % 9, axis=0)
    strategy.run(lambda x: count.assign_add(x.sum() + keras.ops.sum(rows())), (batch,))
    step()
    names = ("compile_requests_use_cache", "cache_hits", "cache_misses")
    print(*(happened["/jax/compilation_cache/" + name] for name in names))
    print(losses["val_loss"], float(count.value))
"""


@pytest.fixture
def settings():
    """JAX's settings are those of a user who chose none, and as before afterwards."""
    usual = {name: value for name, (value, _) in compilation_cache._SETTINGS.items()}
    usual["jax_compilation_cache_dir"] = None
    before = {name: getattr(jax.config, name) for name in usual}
    for name, value in usual.items():
        jax.config.update(name, value)
    compilation_cache.cache_of_jax.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.cache_of_jax.reset_cache()


def test_the_second_start_of_a_program_compiles_nothing(tmp_path):
    environment = {"RX_COMPILATION_CACHE": str(tmp_path), "JAX_NUM_CPU_DEVICES": "2"}
    first, second = (run_python(PROGRAM, **environment).splitlines() for _ in range(2))
    wanted, _, missed = map(int, first[0].split())
    assert missed > 10 and wanted >= missed
    asked, found, missed = map(int, second[0].split())
    assert (found, missed) == (asked, 0)
    assert second[1] == first[1]


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_CACHE_HOME": "/c"}, Path("/c/replicax")),
        ({"RX_COMPILATION_CACHE": "/my/own", "XDG_CACHE_HOME": "/c"}, Path("/my/own")),
        ({"RX_COMPILATION_CACHE": "OFF"}, None),
    ],
)
def test_the_environment_says_where(environ, folder):
    assert compilation_cache_folder(environ) == folder


def test_a_users_own_setting_of_jax_is_left_alone(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("RX_COMPILATION_CACHE", str(tmp_path / "ours"))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    compilation_cache.begin.__wrapped__()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs")
    assert not (tmp_path / "ours").exists()


def test_where_nothing_can_be_written_one_line_says_so(settings, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RX_COMPILATION_CACHE", str(tmp_path / "file" / "folder"))
    with caplog.at_level(logging.INFO, "replicax"):
        compilation_cache.begin.__wrapped__()
    assert [record.message[:26] for record in caplog.records] == ["Compiled programs are not "]
    assert jax.config.jax_compilation_cache_dir is None


def test_programs_of_this_process_are_kept_where_it_says(settings, tmp_path):
    folder = rx.config.compilation_cache(tmp_path)
    jax.jit(lambda x: x * 3 + 1)(2.0)
    assert list(folder.glob("*-cache"))
    assert rx.config.compilation_cache(False) is None
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize("asked", [None, True])
@pytest.mark.parametrize(
    ("kept", "folder"), [(None, "user/replicax"), ("ours", "ours"), ("off", "user/replicax")]
)
def test_without_a_name_the_folder_is_that_of_the_environment(
    settings, tmp_path, monkeypatch, asked, kept, folder
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("RX_COMPILATION_CACHE")
    if kept:
        monkeypatch.setenv("RX_COMPILATION_CACHE", kept.replace("ours", str(tmp_path / "ours")))
    assert compilation_cache.choose(asked).parent == tmp_path / folder


def test_a_folder_that_is_asked_for_must_be_one(settings, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(rx.errors.UsageError, match="Cannot keep compiled programs in"):
        rx.config.compilation_cache(tmp_path / "file")


def test_programs_are_not_kept_where_others_can_write(settings, tmp_path, monkeypatch, caplog):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("RX_COMPILATION_CACHE", str(tmp_path))
    with caplog.at_level(logging.INFO, "replicax"):
        compilation_cache.begin.__wrapped__()
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("Compiled programs are not kept") and "other users can write" in said
    assert jax.config.jax_compilation_cache_dir is None


def test_old_programs_and_halves_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation_cache, "MAX_PROGRAMS", 2)
    for age, name in enumerate(["new", "middle", "old"]):
        (tmp_path / f"{name}-cache").touch()
        (tmp_path / f"{name}-atime").touch()
        compilation_cache.os.utime(tmp_path / f"{name}-atime", (1000 - age, 1000 - age))
    (tmp_path / "half-cache").touch()
    compilation_cache._tidy(tmp_path)
    left = {path.name for path in tmp_path.iterdir()} - {".lockfile"}
    assert left == {"new-cache", "new-atime", "middle-cache", "middle-atime"}


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

"""The variables that Replicax sets."""

import json
import os
import sys

import pytest

from replicax._core.env import (
    KERAS_BACKEND,
    cpu_tuning_parts,
    environment_for_child,
    only_compiling_for_tpus,
    prefer_jax_backend,
    prefer_nccl_ring,
    ray_asks_for_token,
    second_port,
    tuning_for_child,
    watchdog_seconds,
    without_idle_libtpu,
)
from replicax._core.errors import UsageError

from helpers import run_python


def test_jax_is_chosen_while_the_choice_is_open(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.delenv(KERAS_BACKEND)
    prefer_jax_backend()
    assert os.environ[KERAS_BACKEND] == "jax"


def test_the_users_choice_is_left_alone(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setenv(KERAS_BACKEND, "torch")
    prefer_jax_backend()
    assert os.environ[KERAS_BACKEND] == "torch"


def test_after_keras_is_imported_there_is_nothing_to_choose(monkeypatch):
    monkeypatch.delenv(KERAS_BACKEND)
    prefer_jax_backend()
    assert KERAS_BACKEND not in os.environ


def test_nccl_makes_rings_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    prefer_nccl_ring()
    assert os.environ["NCCL_ALGO"] == "Tree"
    monkeypatch.delenv("NCCL_ALGO")
    prefer_nccl_ring()
    assert os.environ["NCCL_ALGO"] == "Ring"


@pytest.mark.parametrize(("text", "seconds"), [("", None), (" ", None), ("2.5", 2.5), ("4", 4.0)])
def test_the_watchdog_is_told_its_patience(text, seconds, monkeypatch):
    monkeypatch.setenv("RX_WATCHDOG_SECONDS", text)
    assert watchdog_seconds() == seconds
    monkeypatch.delenv("RX_WATCHDOG_SECONDS")
    assert watchdog_seconds() is None


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_the_patience_of_the_watchdog_is_a_number(text, monkeypatch):
    monkeypatch.setenv("RX_WATCHDOG_SECONDS", text)
    with pytest.raises(UsageError, match=f"RX_WATCHDOG_SECONDS .*got '{text}'"):
        watchdog_seconds()


@pytest.mark.parametrize(("text", "port"), [("", 0), (" ", 0), (" 2223 ", 2223)])
def test_the_second_port_of_the_chief_may_be_said(text, port, monkeypatch):
    monkeypatch.setenv("RX_SECOND_PORT", text)
    assert second_port() == port
    monkeypatch.delenv("RX_SECOND_PORT")
    assert second_port() == 0


@pytest.mark.parametrize("text", ["any", "0", "-1", "65536", "1.5"])
def test_the_second_port_is_a_port(text, monkeypatch):
    monkeypatch.setenv("RX_SECOND_PORT", text)
    with pytest.raises(UsageError, match=f"RX_SECOND_PORT='{text}'"):
        second_port()


def test_a_child_inherits_the_environment_but_for_what_is_left_out():
    environ = {"HOME": "/home/x", "RAY_A": "1", "RX_B": "2", "PATH": "old"}
    child = environment_for_child({"PATH": "new"}, without=["RAY_", "RX_"], environ=environ)
    assert child == {"HOME": "/home/x", "PATH": "new"}
    assert environment_for_child({}, environ=environ) == environ


def test_a_child_inherits_from_this_process(monkeypatch):
    monkeypatch.setenv("RX_A", "1")
    assert environment_for_child({})["RX_A"] == "1"


@pytest.mark.parametrize(
    ("mode", "asks"),
    [(None, False), ("disabled", False), ("Token", True)],
)
def test_whether_ray_shows_a_token(mode, asks, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    assert ray_asks_for_token() is asks


def test_libtpu_is_kept_out_where_there_is_no_tpu():
    (file,) = without_idle_libtpu({}, chips=0).values()
    assert os.path.isfile(file)  # else JAX warns of a path that is not there
    assert without_idle_libtpu({}, chips=4) == {}
    assert without_idle_libtpu({"JAX_PLATFORMS": "tpu"}, chips=0) == {}
    assert without_idle_libtpu({"TPU_LIBRARY_PATH": "mine.so"}, chips=0) == {}


STARTS_JAX = """
    import json, os

    os.dup2(1, 2)
    for name in ("JAX_PLATFORMS", "TPU_LIBRARY_PATH"):  # what the tests say for themselves
        os.environ.pop(name, None)
    os.environ.update(json.loads(os.environ["OWN"]))
    import jax  # which names libtpu itself, where it is installed

    import replicax as rx
    from replicax._core import env

    env.chips_on_bus = lambda: 0
    rx.MirroredStrategy(["CPU:0"])
    assert jax.devices()[0].platform == "cpu"
    print("left out:", os.environ.get("TPU_LIBRARY_PATH") == env.__file__)
"""


@pytest.mark.parametrize(("own", "left_out"), [({}, True), ({"TPU_LIBRARY_PATH": __file__}, False)])
def test_a_program_that_imports_jax_first_starts_without_libtpu_and_a_word(own, left_out):
    said = run_python(STARTS_JAX, OWN=json.dumps(own))
    assert f"left out: {left_out}" in said
    assert "TPU" not in said and "libtpu" not in said


@pytest.mark.parametrize(
    ("parts", "variable"), [({"pooling", "fusions"}, "fusions,pooling"), (set(), "0")]
)
def test_a_child_is_tuned_by_the_parts_that_are_on(parts, variable):
    assert tuning_for_child(parts, {}) == {"RX_CPU_TUNING": variable}
    assert cpu_tuning_parts(tuning_for_child(parts, {})) == parts
    assert "malloc" in tuning_for_child({"memory"}, {})["GLIBC_TUNABLES"]


@pytest.mark.parametrize("library", [None, __file__, "/opt/libtpu.so"])
def test_who_only_compiles_loads_libtpu(monkeypatch, library):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    if library:
        monkeypatch.setenv("TPU_LIBRARY_PATH", library)
    before = dict(os.environ)
    with only_compiling_for_tpus():
        assert os.environ["TPU_SKIP_MDS_QUERY"] == "1"
        assert os.environ.get("TPU_LIBRARY_PATH") == (library if library != __file__ else None)
    assert dict(os.environ) == before

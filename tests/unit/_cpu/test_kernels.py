"""The kernels in C: what the build makes of them, which library is loaded; nothing is started."""

import logging
import os
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from replicax._cpu import images, kernels
from replicax._cpu.examples import columns_of
from replicax._cpu.kernels import LEVELS, TARGETS, NoKernelsError
from replicax.data._formats.example import make_example

from helpers import run_python

SCRIPT = Path(__file__).parents[3] / "scripts" / "kernels.py"
BUILDER = runpy.run_path(str(SCRIPT))
build = BUILDER["build"]
# The real compiler without its optimizations, which take most of its time; an install makes them.
QUICKLY = f'exec {" ".join(BUILDER["compiler"]())} "$@" -O0'


def compiler(folder, monkeypatch, script):
    """Let the C compiler be a shell script."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.skipif(not BUILDER["compiler"](), reason="there is no C compiler, or none is used")
def test_a_build_makes_a_library_for_each_level_with_all_kernels(tmp_path, monkeypatch):
    folder = tmp_path / "built"
    folder.mkdir()
    (folder / "old.so").touch()
    (folder / "not_built.txt").write_text("an earlier build failed")
    compiler(tmp_path, monkeypatch, QUICKLY)
    assert build(folder) == ""
    (levels,) = (own for own in BUILDER["LEVELS"].values() if set(own) & set(built(folder)))
    assert sorted(levels) == built(folder)
    assert set(levels) <= set(LEVELS)
    for path in folder.iterdir():
        assert all(target.encode() + b"\0" in path.read_bytes() for target in TARGETS)


def built(folder):
    return [path.stem for path in sorted(folder.glob("*.so"))]


def test_without_a_compiler_the_build_says_so_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    (tmp_path / "x86-64-v3.so").touch()  # of an earlier build
    why = build(tmp_path)
    assert why and names(tmp_path) == ["not_built.txt"]
    with pytest.raises(NoKernelsError) as off:
        kernels.load(tmp_path)
    assert str(off.value) == why


@pytest.mark.skipif(not BUILDER["compiler"](), reason="no kernels are built on this system")
def test_a_compiler_that_fails_does_not_stop_the_build(tmp_path, monkeypatch):
    compiler(
        tmp_path, monkeypatch, "echo 'In file a.c:'\necho 'a.c:1: error: no such thing'\nexit 1"
    )
    assert "a.c:1: error: no such thing" in build(tmp_path)
    assert names(tmp_path) == ["compiler", "not_built.txt"]


@pytest.mark.skipif("x86-64-v3" not in BUILDER["LEVELS"].get(os.uname().machine, ()), reason="x86")
def test_a_compiler_that_does_not_know_a_level_makes_the_others(tmp_path, monkeypatch):
    script = f'case "$*" in *march=x86-64-v4*) echo error: unknown; exit 1;; esac\n{QUICKLY}'
    compiler(tmp_path, monkeypatch, script)
    assert "unknown" in build(tmp_path)
    assert built(tmp_path)[0] == "x86-64-v3"


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        (LEVELS["x86-64-v4"], "x86-64-v4"),
        (LEVELS["x86-64-v4"] - {"avx512vl"}, "x86-64-v3"),
        (LEVELS["x86-64-v3"] - {"fma"}, None),
        ({"asimd", "fp"}, "aarch64"),
        ((), None),
    ],
)
def test_the_best_library_that_this_cpu_can_run_is_chosen(tmp_path, monkeypatch, flags, best):
    for name in LEVELS:
        (tmp_path / f"{name}.so").touch()
    info = tmp_path / "cpuinfo"
    kind = "Features" if "asimd" in flags else "flags"
    info.write_text(f"processor : 0\n{kind}\t\t: {' '.join(flags)}\n\nprocessor : 1\n{kind} : \n")
    monkeypatch.setattr(kernels, "_CPU_INFO", info)
    kernels._instructions.cache_clear()
    try:
        with pytest.raises(NoKernelsError, match=f"for {best} cannot" if best else "this CPU"):
            kernels.load(tmp_path)  # the files are empty
    finally:
        kernels._instructions.cache_clear()


def test_a_program_without_kernels_is_told_once(tmp_path, monkeypatch, caplog):
    def no_kernels():
        raise NoKernelsError("nobody built them")

    monkeypatch.setattr(kernels, "load", no_kernels)
    kernels.are_there.cache_clear()
    try:
        with caplog.at_level(logging.INFO, "replicax"):
            assert not any(kernels.are_there() for _ in range(2))
    finally:
        kernels.are_there.cache_clear()
    assert len(caplog.records) == 1 and "nobody built them" in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="the kernels are not used there")
def test_no_process_is_started_by_an_import_a_strategy_or_a_first_step():
    program = """
        import keras  # h5py asks `uname` which processor this is
        import sys
        starts = ("subprocess", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system")
        seen = []
        sys.addaudithook(lambda event, args: event.startswith(starts) and seen.append(args))
        import numpy as np
        import replicax as rx
        with rx.MirroredStrategy().scope():
            model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128)])
            model.compile("adam", "mse")
        model.fit(np.ones((8, 64)), np.ones((8, 128)), verbose=0)  # enough for the kernel of Adam
        assert not seen, seen
    """
    run_python(program)


def test_functions_of_the_host_are_in_the_library_that_is_loaded():
    if not kernels.are_there():
        # Only where there is no C compiler: test_wheel.py fails if there is one and no kernels.
        pytest.skip("the kernels are not built")
    image = np.random.default_rng(0).random((2, 4, 4, 3), np.float32)
    for name in (images.CONTRAST, images.SATURATION, images.HUE):
        assert images.changed(name, image, 0.5) is not None
    one = np.zeros((1, 2), np.int64), np.ones((1, 2), np.float32)
    np.testing.assert_array_equal(images.resized(image, one, one), image[:, [0, 0]][:, :, [0, 0]])
    record = make_example({"x": [1, 2]})
    assert columns_of([record], {"x": "int64"})["x"].values.tolist() == [1, 2]

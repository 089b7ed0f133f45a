"""A program of several workers is compiled by one of them, and found again at the next start."""

from __future__ import annotations

import io
import os
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from faults.planted import Planted

import replicax as rx
from replicax._core import compilation_cache
from replicax._core import compiled_once as compiled_once_module
from replicax._core.compiled_once import compiled_once
from replicax._core.compiling import compiled

from channels import as_workers


@pytest.fixture
def folder(tmp_path):
    """Where programs are kept; JAX's settings are as before afterwards."""
    names = ("jax_compilation_cache_dir", *compilation_cache._SETTINGS)
    before = {name: getattr(jax.config, name) for name in names}
    yield rx.config.compilation_cache(tmp_path / "kept")
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.cache_of_jax.reset_cache()


_turn = threading.Lock()


def spread(x):
    mesh = jax.make_mesh((2,), ("replica",), devices=jax.devices()[2:4])
    return jax.device_put(np.float32(x), jax.NamedSharding(mesh, jax.P("replica")))


def new_step():
    """A function that JAX has not seen, as in a new process."""

    def step(x):
        return jnp.tanh(x) * 3, x.sum()

    return step


def compiled_by_two(fn=None, x=(1.0, 2.0)):
    """For each of two workers: whether it has the program of its own, and what that gives."""

    def work(index):
        del index
        program = compiled(fn or new_step())
        mine = compiled_once(program, spread(x))
        with _turn:
            return mine is program, jax.tree.map(np.asarray, mine(spread(x)))

    found = as_workers(2, work)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    (_, a), (_, b) = found
    jax.tree.map(np.testing.assert_array_equal, a, b)
    return [own for own, _ in found], a


def kept(folder):
    return sorted((folder / "of-all-workers").glob("*"))


def test_one_compiles_and_the_other_loads(folder):
    owns, result = compiled_by_two()
    assert owns == [True, False]
    np.testing.assert_allclose(result[0], 3 * np.tanh([1.0, 2.0]), rtol=1e-6)
    assert result[1] == 3
    assert len(kept(folder)) == 1


def test_at_the_next_start_nobody_compiles(folder):
    compiled_by_two()
    (before,) = kept(folder)
    written = before.read_bytes()
    assert compiled_by_two()[0] == [False, False]
    (after,) = kept(folder)
    assert (after, after.read_bytes()) == (before, written)


def test_other_programs_have_other_names(folder):
    compiled_by_two()
    compiled_by_two(lambda x: (x + 1, x.sum()))
    compiled_by_two(x=(1.0, 2.0, 3.0, 4.0))
    assert len(kept(folder)) == 3


def test_arguments_of_another_kind_are_compiled_as_ever(folder):
    del folder

    def work(index):
        program = compiled_once(compiled(new_step()), spread([1, 2]))
        with _turn:
            sums = [program(x)[1] for x in (spread([1, 2, 3, 4]), np.float32([5, 6, 7]))]
            return index, *map(float, sums)

    assert as_workers(2, work) == [(0, 10, 18), (1, 10, 18)]


def test_what_is_on_one_device_is_compiled_by_each(folder):
    def work(index):
        del index
        program = compiled(new_step())
        return compiled_once(program, np.float32([1, 2])) is program

    assert as_workers(2, work) == [True, True]
    assert not kept(folder)


def test_what_jax_has_read_is_not_written(folder):
    """Its functions would be missing in the file: JAX's own file was there, ours is gone."""
    compiled_by_two()
    (file,) = kept(folder)
    file.unlink()
    assert compiled_by_two()[0] == [True, True]
    assert not kept(folder)


def test_xla_with_other_options_makes_another_program(folder, monkeypatch):
    del folder
    program = compiled(new_step())
    x = spread([1, 2])

    def name():
        return compiled_once_module._path(program.lower(x), program, jax.devices()[2:4]).name

    names = [name(), name()]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    names.append(name())
    before = jax.config.values["jax_optimization_level"]
    jax.config.update("jax_optimization_level", "O1")
    names.append(name())
    jax.config.update("jax_optimization_level", before)
    assert names[0] == names[1]
    assert len(set(names)) == 3


@pytest.mark.parametrize("damage", ["cut", "nonsense"])
def test_a_file_that_cannot_be_read_is_as_none(folder, damage):
    compiled_by_two()
    (file,) = kept(folder)
    file.write_bytes(file.read_bytes()[:100] if damage == "cut" else b"nonsense")
    assert compiled_by_two()[0] == [True, True]
    assert not kept(folder)


def test_what_calls_python_is_compiled_by_each(folder):
    def asking(x):
        return jax.pure_callback(lambda v: np.asarray(v) + 1, x, x)

    owns, result = compiled_by_two(asking)
    assert owns == [True, True]
    np.testing.assert_array_equal(result, [2, 3])
    assert not kept(folder)


def test_what_prints_is_compiled_by_each(folder):
    def saying(x):
        jax.debug.print("{}", x)
        return x + 1

    assert compiled_by_two(saying)[0] == [True, True]
    assert not kept(folder)


def test_nothing_is_kept_where_nothing_is_to_be_kept(folder):
    rx.config.compilation_cache(False)
    assert compiled_by_two()[0] == [True, True]
    assert not kept(folder)


def test_a_disk_that_is_full(folder, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert compiled_by_two()[0] == [True, True]


def test_an_error_of_the_program_is_that_of_its_call(folder, monkeypatch):
    del folder
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_: 1 / 0)
    assert compiled_by_two()[0] == [True, True]


def test_the_oldest_go_first(folder, monkeypatch):
    common = compilation_cache.common_programs()
    for age in range(5):
        file = common / f"program-{age}"
        file.write_bytes(b"")
        os.utime(file, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(compilation_cache, "MAX_COMMON", 2)
    compilation_cache._tidy(folder)
    assert [file.name for file in kept(folder)] == ["program-0", "program-1"]


def test_a_file_that_names_other_code_is_removed_and_nothing_runs(folder, tmp_path):
    compiled_by_two()
    (path,) = kept(folder)
    path.write_bytes(pickle.dumps(Planted(tmp_path / "it ran")))
    assert compiled_by_two()[0] == [True, True]
    assert not (tmp_path / "it ran").exists()
    assert not path.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [("os", "system"), ("jax", "os.system"), ("jax._src.random.prng", "np.memmap")],
)
def test_a_program_refers_to_descriptions_only(module, name):
    reader = compiled_once_module._Reader(io.BytesIO(), jax.devices())
    with pytest.raises(pickle.UnpicklingError):
        reader.find_class(module, name)

"""The wheel, installed in an environment of its own, does its main job."""

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from runpy import run_path

import pytest
from packaging.requirements import Requirement

from helpers import completed

ROOT = Path(__file__).resolve().parents[1]
COMPILER = run_path(str(ROOT / "scripts" / "kernels.py"))["compiler"]()
SECONDS = 400

pytestmark = pytest.mark.timeout(2 * SECONDS)

# Two replicas learn what one device learns; the facade and the typing marker are in the wheel.
PROGRAM = """
import replicax as rx
rx.testing.virtual_devices(2)
import importlib.resources
import keras
import numpy as np
import replicax.tf as tf

x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)


def learned(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    model.fit(x, y, batch_size=25, epochs=2, verbose=0)
    return model.get_weights()


one, two = learned(rx.OneDeviceStrategy("CPU:0")), learned(tf.distribute.MirroredStrategy())
for ours, theirs in zip(two, one, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
files = importlib.resources.files("replicax")
assert files.joinpath("py.typed").is_file() and files.joinpath("tf/keras/losses.pyi").is_file()
print(rx.__file__)
"""

# Of a table a kernel looks up two rows; without kernels XLA does.
KERNELS = """
import jax
import jax.numpy as jnp
import replicax as rx
from replicax._cpu.programs import with_rules
from replicax._cpu import kernels

rx.OneDeviceStrategy("CPU:0").run(lambda: None)
look_up = jax.jit(with_rules(lambda table, ids: table[ids]))
arrays = jnp.arange(3.0 * 4096).reshape(3, 4096), jnp.array([2, 0], "int32")
assert look_up(*arrays)[:, 1].tolist() == [8193.0, 1.0]
print(kernels.LOOK_UP in look_up.lower(*arrays).as_text())
"""


def run(*command, cwd, **own):
    hidden = ("PYTHONPATH", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "NPROC")
    environ = {name: value for name, value in os.environ.items() if name not in hidden} | own
    how = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "seconds": SECONDS}
    finished = completed(command, cwd=cwd, env=environ, **how)
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def build(folder, **own):
    """Build the wheel from a copy of the sources, in an environment that pip makes for it."""
    tree = folder / "tree"
    for name in ("src", "scripts"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("built"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    command = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, tree)
    run(*command, cwd=folder, **own)
    (wheel,) = folder.glob("replicax-*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The folder of a virtual environment that has the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    # Without optimizations, which take most of the compiler's time; those of an install have them.
    quick = folder / "compiler"
    quick.write_text(f'#!/bin/sh\nexec {shlex.join(COMPILER)} "$@" -O0\n')
    quick.chmod(0o755)
    wheel = build(folder, CC=str(quick) if COMPILER else "")
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "env/bin/python", "install", "-q")
    run(*pip, "--no-compile", "--no-deps", wheel, cwd=folder)
    (packages,) = (folder / "env").glob("lib/python3*/site-packages")
    (own,) = metadata.distributions(name="replicax", path=[str(packages)])
    link_what_is_needed(own, packages, set())
    run(sys.executable, "-m", "pip", "--python", folder / "env/bin/python", "check", cwd=folder)
    return folder / "env"


def link_what_is_needed(distribution, packages, done):
    """Link what a distribution requires from this environment: to install it takes a minute."""
    for text in distribution.requires or ():
        requirement = Requirement(text)
        is_for_here = not requirement.marker or requirement.marker.evaluate({"extra": ""})
        if not is_for_here or requirement.name in done:
            continue
        done.add(requirement.name)
        needed = metadata.distribution(requirement.name)
        for name in {file.parts[0] for file in needed.files} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(needed.locate_file(name))
        link_what_is_needed(needed, packages, done)


def test_two_replicas_of_an_installed_wheel_learn_what_one_device_learns(environment, tmp_path):
    printed = run(environment / "bin/python", "-c", PROGRAM, cwd=tmp_path)
    assert Path(printed.split()[-1]).is_relative_to(environment)


def test_an_installed_wheel_computes_by_the_kernels_that_its_build_made(environment, tmp_path):
    built = bool(COMPILER)
    assert run(environment / "bin/python", "-c", KERNELS, cwd=tmp_path).split() == [str(built)]
    found = run(environment / "bin/replicax", "doctor", cwd=tmp_path, JAX_PLATFORMS="cpu")
    (line,) = (line for line in found.splitlines() if "CPU kernels" in line and "pip" not in line)
    assert ("ok" in line.split()) == built


def test_without_a_compiler_there_is_a_wheel_for_all_systems(tmp_path):
    wheel = build(tmp_path, PATH=str(tmp_path), CC="")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    assert "not_built.txt" in names and not any(name.endswith(".so") for name in names)


def test_the_commands_of_an_installed_wheel_start(environment, tmp_path):
    assert "usage:" in run(environment / "bin/replicax", "--help", cwd=tmp_path)
    assert run(environment / "bin/replicax", "devices", cwd=tmp_path)

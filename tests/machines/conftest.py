"""Networks of machines, and programs that `replicax run` starts on them."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from . import network, train
from helpers import LEAN, wait_until

REPLICAX = [sys.executable, "-m", "replicax.launch", "run"]
SECRET = 32 * "5a"
SECONDS_TO_END = 100
LONG = ("300", "0.1")  # epochs, and seconds between steps: longer than any test
why_not = cache(network.why_not)


@pytest.fixture
def home():
    """What a shell of a machine has in its environment."""
    kept = ("XLA_FLAGS", "NPROC", "TF_CPP_MIN_LOG_LEVEL", "RX_COMPILATION_CACHE", "PATH")
    own = {name: os.environ[name] for name in kept}
    return {**own, **LEAN, "KERAS_BACKEND": "jax", "JAX_NUM_CPU_DEVICES": "1"}


@pytest.fixture
def machines(tmp_path, home):
    """Make a network: `with machines("a", "b") as net`."""
    if why := why_not():
        pytest.skip(why)

    def made(*names, hidden=(), **environment):
        folder = tmp_path / "network"
        folder.mkdir()
        return network.machines(folder, names, {**home, **environment}, hidden)

    return made


@pytest.fixture
def skewed(home):
    """The environment in which the clock of machine b is ten minutes ahead, for Python."""
    own = Path(__file__).with_name("skewed")
    return {"PYTHONPATH": f"{own}{os.pathsep}{home['PYTHONPATH']}"}


@pytest.fixture
def program(tmp_path):
    """A folder with the program in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("train.py", "serve.py", "keep.py"):
        shutil.copy(Path(train.__file__).with_name(name), folder)
    return folder


@pytest.fixture
def launch(program):
    """Start `replicax run --hosts` on a machine that is none of the network's."""
    started = []

    def launch(net, *arguments, hosts=None, **options):
        names = ",".join(hosts or net.addresses)
        command = [*REPLICAX, "--hosts", names, "--ssh", str(net.ssh), *map(str, arguments)]
        environ = {name: text for name, text in os.environ.items() if not name.startswith("RX_")}
        process = subprocess.Popen(
            command,
            cwd=program,
            env={**environ, **LEAN, "PWD": str(program)},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options},
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def begun(program, *names):
    """Wait until the workers of these machines are between two steps."""
    wait_until(lambda: all((program / f"step-{name}").exists() for name in names), 60)


def ended(process, seconds=SECONDS_TO_END):
    """Wait for it; give its exit code and what it said."""
    said, _ = process.communicate(timeout=seconds)
    return process.returncode, said


@cache
def expected(epochs=2):
    """The weights after `fit` on one device."""
    net = train.model()
    x, y = train.data()
    net.fit(x, y, batch_size=16, epochs=epochs, verbose=0)
    return net.get_weights()


def assert_trained(folder, workers, epochs=2):
    """Every worker has the weights of one device."""
    for worker in range(workers):
        with np.load(Path(folder) / f"weights-{worker}.npz") as found:
            for name, weight in zip(found.files, expected(epochs), strict=True):
                np.testing.assert_allclose(found[name], weight, rtol=2e-5, atol=2e-6)


def by_hand(net, program, *arguments, **variables):
    """Start the program on each machine with `TF_CONFIG`, as its docs say."""
    workers = [f"{name}:2222" for name in net.addresses]
    started = []
    for index, name in enumerate(net.addresses):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        own = {"TF_CONFIG": json.dumps(config), "RX_CLUSTER_SECRET": SECRET, **variables}
        words = ["env", *(f"{key}={text}" for key, text in own.items())]
        command = [*words, sys.executable, "train.py", *arguments]
        started.append(net.popen(name, *command, folder=program))
    return started

"""What the tests of custom loops share: comparing nests, per-replica values, a net by hand."""

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import jax
import keras
import numpy as np
import pytest
from before_jax import ON_GPUS

from replicax._control._heartbeat import frame_of
from replicax._cpu.tuning import PARTS, choose

TESTS = Path(__file__).parent
_PYTHONPATH = os.environ.get("PYTHONPATH", "")
# For what the tests start. Keras imports scikit-learn and matplotlib where it finds them, which is
# a half of what it takes to start a process.
LEAN = {
    "PYTHONPATH": os.pathsep.join(
        [str(TESTS / "lean"), str(TESTS.parent / "src"), _PYTHONPATH]
    ).strip(os.pathsep)
}
# For processes that draw.
WITH_PLOTS = {
    "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), _PYTHONPATH]).strip(os.pathsep)
}

# For tests that compile a model: one of each kind, and a number of replicas that divides nothing.
FEW = ("default", "one_device", "mirrored_2", "mirrored_3", "central_storage_4")
if ON_GPUS:
    FEW += ("mirrored_1", "central_storage_1")
few_strategies = pytest.mark.parametrize("strategy", FEW, indirect=True)
# For the slowest of them.
three_strategies = pytest.mark.parametrize(
    "strategy", ["one_device", "mirrored_2", "central_storage_4"], indirect=True
)
# For what compiles little: one replica, several, and several with weights elsewhere.
two_strategies = pytest.mark.parametrize(
    "strategy", ["one_device", "mirrored_3", "central_storage_4"], indirect=True
)
two_replicas = pytest.mark.parametrize(
    "strategy", ["mirrored_2", "central_storage_2"], indirect=True
)
several_replicas = pytest.mark.parametrize(
    "strategy", ["mirrored_2", "mirrored_3", "central_storage_4"], indirect=True
)


def assert_trees_close(actual, expected, rtol=1e-5, atol=1e-6):
    """Compare two nests of arrays, leaf by leaf."""
    leaves, tree = jax.tree.flatten(actual)
    expected_leaves, expected_tree = jax.tree.flatten(expected)
    assert tree == expected_tree
    for leaf, other in zip(leaves, expected_leaves, strict=True):
        np.testing.assert_allclose(np.asarray(leaf), np.asarray(other), rtol=rtol, atol=atol)


def tuned(**parts):
    """All parts of the tuning for CPUs are on in a block, but for those that are False."""
    assert set(parts) <= PARTS
    return choose({part for part in PARTS if parts.get(part, True)})


def device_names(value):
    """The names of the devices of an array, such as `CPU:1`."""
    return [f"{device.platform.upper()}:{device.id}" for device in value.devices()]


def local(strategy, value):
    """The components of one value, as NumPy arrays."""
    return [np.asarray(part) for part in strategy.experimental_local_results(value)]


def per_replica(strategy, *components):
    """A value with the given component on each replica; one component is for every replica."""

    def component(context):
        replica = context.replica_id_in_sync_group if len(components) > 1 else 0
        return np.asarray(components[replica])

    return strategy.experimental_distribute_values_from_function(component)


def batch_of(strategy, batch):
    """One global batch, split over the replicas."""
    (split,) = strategy.experimental_distribute_dataset([batch])
    return split


def since_now(listed):
    """A function that lists what has come since now: what was there before may go at any time."""
    before = frozenset(listed())
    return lambda: [each for each in listed() if each not in before]


# Taken anew for each test: those before it may have left threads that have yet to end.
_new_threads = since_now(threading.enumerate)


def a_test_begins():
    global _new_threads
    _new_threads = since_now(threading.enumerate)


def begun_threads(name=""):
    """The threads that this test has begun and that still run, of names that begin so."""
    return [thread for thread in _new_threads() if thread.name.startswith(name)]


def open_files(*kinds):
    """Numbers and targets of the files that this process has open, of targets that begin so."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile; that of the listing itself
            target = os.readlink(link)
            if target.startswith(kinds):
                found.append((int(link.name), target))
    return found


def is_waiting(thread):
    """Whether a thread waits for another one, at an event or a condition."""
    frame = frame_of(thread)
    return frame is not None and frame.f_code is threading.Condition.wait.__code__


def wait_until(holds, seconds=60):
    """Wait for what another thread or process does; the limit is for one that never does it."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        threading.Event().wait(0.005)
    assert holds()


def tanh_net():
    """Two Dense layers with fixed weights, whose gradients `tanh_gradients` knows."""
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    )
    for variable, value in zip(model.variables, tanh_weights(), strict=True):
        variable.assign(value)
    return model


def tanh_weights():
    sample = np.random.default_rng(3)
    shapes = [(3, 4), (4,), (4, 1), (1,)]
    return [sample.normal(size=shape).astype("float32") / 2 for shape in shapes]


def tanh_data(rows, batches=1):
    """Batches of inputs and targets for `tanh_net`."""
    sample = np.random.default_rng(4)
    return [
        (
            sample.normal(size=(rows, 3)).astype("float32"),
            sample.normal(size=(rows, 1)).astype("float32"),
        )
        for _ in range(batches)
    ]


def tanh_gradients(weights, x, y):
    """Loss and gradients of the mean squared error of `tanh_net`, by the chain rule."""
    kernel, bias, kernel_2, bias_2 = weights
    hidden = np.tanh(x @ kernel + bias)
    error = hidden @ kernel_2 + bias_2 - y
    d_out = 2 * error / len(x)
    d_hidden = (d_out @ kernel_2.T) * (1 - hidden**2)
    grads = [x.T @ d_hidden, d_hidden.sum(0), hidden.T @ d_out, d_out.sum(0)]
    return float(np.mean(error**2)), grads


class NumpySGD:
    """`keras.optimizers.SGD(learning_rate)`, in NumPy."""

    def __init__(self, learning_rate):
        self.learning_rate = learning_rate

    def apply(self, weights, grads):
        return [w - self.learning_rate * g for w, g in zip(weights, grads, strict=True)]


class NumpyAdam:
    """`keras.optimizers.Adam(learning_rate)`, in NumPy."""

    def __init__(self, learning_rate, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
        self.learning_rate, self.beta_1, self.beta_2 = learning_rate, beta_1, beta_2
        self.epsilon = epsilon
        self.step = 0
        self.moments = None

    def apply(self, weights, grads):
        self.step += 1
        moments = self.moments or [(0.0, 0.0)] * len(weights)
        self.moments = [
            (self.beta_1 * m + (1 - self.beta_1) * g, self.beta_2 * v + (1 - self.beta_2) * g**2)
            for (m, v), g in zip(moments, grads, strict=True)
        ]
        rate = self.learning_rate * np.sqrt(1 - self.beta_2**self.step)
        rate /= 1 - self.beta_1**self.step
        return [
            w - rate * m / (np.sqrt(v) + self.epsilon)
            for w, (m, v) in zip(weights, self.moments, strict=True)
        ]


def trained_by_hand(optimizer, batches, weights=None):
    """Losses and final weights of `tanh_net` on these batches, in float64."""
    weights = [np.asarray(w, "float64") for w in (weights or tanh_weights())]
    losses = []
    for x, y in batches:
        loss, grads = tanh_gradients(weights, x, y)
        weights = optimizer.apply(weights, grads)
        losses.append(loss)
    return losses, weights


_SAYS_TEXT = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def start_program(command, **options):
    """Start a program, whose text is to be read here."""
    return subprocess.Popen(list(map(str, command)), **(_SAYS_TEXT | options))


def completed(command, *, seconds=200, **options):
    """Run a program to its end: its exit code, and what it said as text."""
    how = _SAYS_TEXT | options
    return subprocess.run(list(map(str, command)), timeout=seconds, check=False, **how)


def run_python(code, **environment):
    """What a program of its own process prints; a failure of it fails the test."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = completed(command, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def uninstall(monkeypatch, package, *modules):
    """Make a machine without a package, on which nobody has imported `modules`, which want it."""
    of_package = [name for name in sys.modules if name.startswith(f"{package}.")]
    for name in (package, *of_package):
        monkeypatch.setitem(sys.modules, name, None)
    for module in modules:
        parent, _, name = module.rpartition(".")
        monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.delattr(f"{parent}.{name}", raising=False)

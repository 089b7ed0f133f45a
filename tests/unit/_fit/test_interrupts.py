"""What is interrupted, or fails in its midst, leaves the values of the last complete step."""

import json
import os
import signal
import subprocess
import sys
import threading

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.interrupts import uninterrupted

from helpers import TESTS


def interrupted(strategy, kind, times):
    command = [sys.executable, str(TESTS / "interrupted.py"), strategy, kind, str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("mirrored", "several steps at once"),
        ("multi-worker", "generator"),
        ("central storage", "run"),
        ("parameter servers", "fit"),
    ],
)
def test_nothing_is_lost_by_interrupts(strategy, kind):
    seen = interrupted(strategy, kind, 12)
    assert seen["wrong"] == []
    assert seen["raised"] > 4
    assert seen["moments"] > 3


@pytest.fixture
def got():
    """The signals that a handler of the user's got."""
    found = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_waits_for_the_end(got):
    handler = signal.getsignal(signal.SIGUSR1)
    with uninterrupted:
        with uninterrupted:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
        assert got == []
    assert got == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) is handler
    signal.raise_signal(signal.SIGUSR1)
    assert len(got) == 2


def test_an_error_inside_does_not_hide_an_interrupt():
    with pytest.raises(KeyboardInterrupt) as caught, uninterrupted:
        signal.raise_signal(signal.SIGINT)
        raise ValueError("inside")
    assert isinstance(caught.value.__context__, ValueError)
    with uninterrupted:
        pass  # it came once


def test_a_handler_that_is_set_inside_stays():
    def own(*_):
        pass

    before = signal.getsignal(signal.SIGUSR2)
    try:
        with uninterrupted:
            signal.signal(signal.SIGUSR2, own)
        assert signal.getsignal(signal.SIGUSR2) is own
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_other_threads_leave_signals_alone(got):
    inside, done = threading.Event(), threading.Event()

    def stay():
        with uninterrupted:
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait(10)
    os.kill(os.getpid(), signal.SIGUSR1)
    with uninterrupted:
        pass
    assert got == [signal.SIGUSR1]
    done.set()
    thread.join()


@pytest.mark.parametrize("kind", ["io", "pure"])
def test_a_callback_that_fails_in_a_step_takes_nothing_along(kind):
    calls, fails = [], []

    def told(_):
        calls.append(1)
        if fails and len(calls) == fails[0]:
            raise ValueError("of the user")
        return np.float32(0)

    class Told(keras.layers.Layer):
        def call(self, x):
            call = jax.experimental.io_callback if kind == "io" else jax.pure_callback
            told_now = call(told, jax.ShapeDtypeStruct((), "float32"), x.sum())
            return x + jax.lax.stop_gradient(told_now)

    with rx.OneDeviceStrategy("CPU:0").scope():
        inputs = keras.Input((3,))
        model = keras.Model(inputs, keras.layers.Dense(1)(Told()(inputs)))
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = np.ones((16, 3), "float32"), np.ones((16, 1), "float32")
    model.fit(x, y, batch_size=8, verbose=0)
    per_step, start = len(calls) // 2, [np.array(v.value) for v in model.variables]
    model.train_on_batch(x[:8], y[:8])
    after_one = model.get_weights()
    for variable, value in zip(model.variables, start, strict=True):
        variable.assign(value)
    calls.clear()
    fails.append(2 * per_step)
    with pytest.raises(Exception, match="of the user"):
        model.fit(x, y, batch_size=8, verbose=0)
    for found, expected in zip(model.get_weights(), after_one, strict=True):
        np.testing.assert_array_equal(found, expected)
    model.fit(x, y, verbose=0)

"""Which errors may be another worker's fault, and who is asked about them."""

import re

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.channel import Channel, set_current
from replicax._program import explain
from replicax._program.explain import end_if_worker_failed, is_device_error

GLOO = "UNKNOWN: Gloo AllReduce failed: Connection closed by peer"


class Misfortune(ValueError):
    """Somebody's own."""


@pytest.mark.parametrize(
    ("error", "is_of_the_runtime"),
    [
        (jax.errors.JaxRuntimeError("anything"), True),
        (ValueError(GLOO), True),
        (ValueError("DEADLINE_EXCEEDED: no peer"), True),
        (ValueError("INTERNAL: reset"), True),
        (ValueError("a value is UNKNOWN: it is"), False),
        (ValueError("INVALID_ARGUMENT: shapes"), False),
        (Misfortune(GLOO), False),
        (RuntimeError(GLOO), False),
        (ValueError(), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_errors_of_the_runtime_and_of_the_program(error, is_of_the_runtime):
    assert is_device_error(error) is is_of_the_runtime


class Two:
    """A channel that notes what it is asked to explain."""

    size = 2

    def __init__(self):
        self.asked = []

    def explain(self, error):
        self.asked.append(error)


@pytest.fixture
def channel():
    two = Two()
    set_current(two)
    yield two
    set_current(Channel())


def test_an_error_of_the_runtime_is_asked_about(channel):
    error = ValueError(GLOO)
    end_if_worker_failed(error)
    end_if_worker_failed(ValueError("no"))
    assert channel.asked == [error]


def test_one_worker_alone_has_nobody_to_blame(monkeypatch):
    monkeypatch.setattr(Channel, "explain", None)
    assert end_if_worker_failed(ValueError(GLOO)) is None


@pytest.mark.parametrize(("backend", "times"), [("gpu", 1), ("cpu", 0)])
def test_an_accelerator_without_memory_says_once_what_to_try(backend, times, monkeypatch):
    monkeypatch.setattr("jax.default_backend", lambda: backend)
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    for _ in range(2):  # by the program, then by `fit`
        with pytest.raises(jax.errors.JaxRuntimeError):
            explain.raise_explained(error)
    assert getattr(error, "__notes__", []) == [explain.WHAT_TO_TRY] * times


class WithoutMemory:
    """A compiled step whose devices have no memory."""

    def __init__(self, program):
        self.trace = program.trace

    def __call__(self, *args):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")


@pytest.fixture
def trained():
    """A model after an epoch on two devices, whose next step finds no memory."""
    return trained_by(rx.MirroredStrategy(["CPU:0", "CPU:1"]))


def trained_by(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(ROWS, TARGETS, batch_size=64, verbose=0)
    (program,) = model.train_function._programs.values()
    program._call = WithoutMemory(program._call)
    return model


ROWS, TARGETS = np.ones((64, 64), "float32"), np.ones((64, 128), "float32")


def note_of(model, monkeypatch, free):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.setattr(explain, "free_memory", lambda devices: free)
    with pytest.raises(jax.errors.JaxRuntimeError) as failed:
        model.fit(ROWS, TARGETS, batch_size=64, verbose=0)
    (note,) = failed.value.__notes__
    assert note.endswith(explain.WHAT_TO_TRY)
    assert "rx.find_batch_size" in note
    return note


def test_a_step_without_memory_says_what_it_needs_and_which_batch_would_fit(trained, monkeypatch):
    """A device has 32 KiB of weights, half of 64 rows of 192 numbers, and temporaries."""
    note = note_of(trained, monkeypatch, 2048)
    assert "on each of 2 device(s): 32.0 KiB for variables, 24.0 KiB for its arguments" in note
    assert "CPU:0 has 58.0 KiB" in note  # 2 KiB, and the arguments
    needs = float(re.search(r"needs ([\d.]+) KiB", note)[1])
    assert int(re.search(r"batch of (\d+) instead of 64", note)[1]) == pytest.approx(
        64 * (58 - 32) / (needs - 32), abs=2
    )


def test_variables_that_fill_a_device_leave_no_room(trained, monkeypatch):
    assert "No batch fits" in note_of(trained, monkeypatch, -24 * 1024 - 100)


def test_memory_that_others_took_is_no_reason_for_a_smaller_batch(trained, monkeypatch):
    assert "would fit" not in note_of(trained, monkeypatch, 2**30)


def test_memory_that_nobody_knows(trained, monkeypatch):
    assert "would fit" not in note_of(trained, monkeypatch, None)


def test_a_step_of_a_custom_loop_says_the_part_of_its_batch(monkeypatch, mirrored):
    with mirrored.scope():
        weights = keras.Variable(np.ones((64, 128), "float32"))

    def step(x):
        return keras.ops.matmul(x, weights)

    mirrored.run(step, args=(ROWS,))
    programs = mirrored.extended.distribution.engine._programs._programs
    ((made, _),) = programs._known.values()
    made.program._call = WithoutMemory(made.program._call)
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.setattr(explain, "free_memory", lambda devices: 16 * 1024)
    with pytest.raises(jax.errors.JaxRuntimeError) as failed:
        mirrored.run(step, args=(ROWS,))
    # 32 KiB of weights, 16 KiB come in, 32 KiB go out.
    assert re.search(r"a batch 0\.\d\d times as large would fit", failed.value.__notes__[0])


def test_what_central_storage_lends_is_counted_once(monkeypatch):
    strategy = rx.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0")
    model = trained_by(strategy)
    store, lent = strategy.extended.distribution.store, []
    fetch = type(store).fetch
    monkeypatch.setattr(store, "fetch", lambda values: lent.append(1) or fetch(store, values))
    note_of(model, monkeypatch, 2048)
    assert len(lent) == 1

"""Which errors may be another worker's fault, and who is asked about them."""

from __future__ import annotations

import jax
import pytest

from replicax._control import set_current
from replicax._control._channel import Alone
from replicax._program import explain
from replicax._program.explain import blame, is_device_error

GLOO = "UNKNOWN: Gloo AllReduce failed: Connection closed by peer"


class Misfortune(ValueError):
    """Somebody's own."""


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("anything"),
        ValueError(GLOO),
        ValueError("DEADLINE_EXCEEDED: no peer"),
        ValueError("INTERNAL: reset"),
    ],
)
def test_errors_of_the_runtime(error):
    assert is_device_error(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a value is UNKNOWN: it is"),
        ValueError("INVALID_ARGUMENT: shapes"),
        Misfortune(GLOO),
        RuntimeError(GLOO),
        ValueError(),
        KeyboardInterrupt(),
    ],
)
def test_errors_of_the_program(error):
    assert not is_device_error(error)


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
    set_current(Alone())


def test_an_error_of_the_runtime_is_asked_about(channel):
    error = ValueError(GLOO)
    blame(error)
    blame(ValueError("no"))
    assert channel.asked == [error]


def test_one_worker_alone_has_nobody_to_blame(monkeypatch):
    monkeypatch.setattr(Alone, "explain", None)
    assert blame(ValueError(GLOO)) is None


@pytest.mark.parametrize(("backend", "times"), [("gpu", 1), ("cpu", 0)])
def test_an_accelerator_without_memory_says_once_what_to_try(backend, times, monkeypatch):
    monkeypatch.setattr("jax.default_backend", lambda: backend)
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    for _ in range(2):  # by the program, then by `fit`
        with pytest.raises(jax.errors.JaxRuntimeError):
            explain.raise_explained(error)
    assert getattr(error, "__notes__", []) == [explain.WHAT_TO_TRY] * times

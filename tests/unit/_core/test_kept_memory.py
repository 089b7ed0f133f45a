"""Memory that the C library keeps for the next step: where, from when on, and what goes back."""

import platform

import jax
import pytest

from replicax._core.env import KEEP_MEMORY, malloc_is_set, tuning_for_child
from replicax._core.machine import memory

from helpers import run_python


def test_memory_is_kept_where_the_c_library_can_keep_it(monkeypatch):
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert memory._set_malloc.__wrapped__() is False


@pytest.mark.parametrize(
    ("name", "value", "own"),
    [
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=2", True),
        ("GLIBC_TUNABLES", f"glibc.malloc.arena_max=2:{KEEP_MEMORY}", True),
        ("MALLOC_TRIM_THRESHOLD_", "1", True),
        ("MALLOC_ARENA_MAX", "2", True),
        ("GLIBC_TUNABLES", KEEP_MEMORY, False),
        ("GLIBC_TUNABLES", "glibc.cpu.x86_shstk=on", False),
    ],
)
def test_what_the_user_told_malloc_stays(monkeypatch, name, value, own):
    assert malloc_is_set({name: value}) is own
    child = tuning_for_child({"memory"}, {name: value})
    assert KEEP_MEMORY not in child.get("GLIBC_TUNABLES", "") or not own
    assert tuning_for_child({"memory"}, {})["GLIBC_TUNABLES"] == KEEP_MEMORY
    if own:
        monkeypatch.setenv(name, value)
        monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
        monkeypatch.setattr(memory.ctypes, "CDLL", None)
        assert memory._set_malloc.__wrapped__() is False


TOLD = """
    from pathlib import Path

    import jax
    import replicax.tf as tf
    from replicax._core.machine import startup

    def threads_of_xla():
        names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
        return sum(name.startswith("tf_XLA") for name in names)

    told, keep_memory = [], startup.keep_memory
    startup.keep_memory = lambda: told.append((keep_memory(), threads_of_xla()))
    tf.distribute.OneDeviceStrategy('CPU:0')
    jax.block_until_ready(jax.numpy.ones(3) + 1)
    print(told, threads_of_xla() > 0)
"""


# A thread's memory is given back at each step for ever if the thread is older than what the C
# library is told. What that costs (27,000 page faults a step of a CNN) depends on the system, this
# does not.
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's own business")
def test_memory_is_kept_from_before_jax_has_threads():
    said = run_python(TOLD, RX_CPU_TUNING="memory", JAX_PLATFORMS="cpu")
    assert said.split("\n")[-2] == "[(True, 0)] True"


def test_what_compiling_took_is_given_back(monkeypatch):
    calls = []

    class Library:
        def mallopt(self, setting, value):
            return 1

        def malloc_trim(self, kept):
            calls.append(kept)

    listeners = []
    register = "register_event_duration_secs_listener"
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(jax.monitoring, register, listeners.append)
    monkeypatch.setattr(memory, "malloc_is_set", lambda: False)
    assert memory._set_malloc.__wrapped__() is True
    for event, seconds in [("/jax/core/compile/backend_compile_duration", 0.01), ("other", 9.0)]:
        listeners[0](event, seconds, fun_name="step")
    assert calls == []
    listeners[0]("/jax/core/compile/backend_compile_duration", 2.0, fun_name="step")
    assert calls == [0]


def test_jax_says_when_a_program_was_compiled():
    seen = []

    def listener(event, seconds, **about):
        seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    jax.jit(lambda x: x * 3.25)(1.0)
    jax.monitoring.unregister_event_duration_listener(listener)
    assert "/jax/core/compile/backend_compile_duration" in seen

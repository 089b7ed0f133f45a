"""What a worker tells of itself, its limits, and a clock that stops with its process."""

import sys
import threading
import types

import pytest

from replicax._control import Limits
from replicax._control._heartbeat import Sampler, Ticks, _stack
from replicax._core.errors import UsageError
from replicax._core.events import dispatched

from helpers import LEAN, is_waiting, run_python, wait_until

# Garbage with finalizers that take long, and threads that start, while one is looked at.
BUSY = """
import faulthandler, gc, os, sys, threading, time, weakref
from replicax._control._heartbeat import frame_of

class Garbage: pass

def deep(calls):
    if calls: deep(calls - 1)
    else: time.sleep(1e-4)

def litter():
    kept = []
    while True:
        deep(30)
        one = Garbage()
        one.self = one
        kept = [*kept[-200:], weakref.ref(one, lambda ref: [None for _ in range(3000)])]

def start():
    while True:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

def look():
    while not over.is_set():
        frame_of(threading.main_thread())

gc.set_threshold(5, 5, 5)
sys.setswitchinterval(1e-5)
faulthandler.dump_traceback_later(60, exit=True)
over = threading.Event()
looking = threading.Thread(target=look, daemon=True)
looking.start()
for doing in (litter, start, start):
    threading.Thread(target=doing, daemon=True).start()
time.sleep(4)
over.set()
looking.join()
print(gc.isenabled(), flush=True)
os._exit(0)
"""


def test_looking_at_a_thread_does_not_stop_a_program_that_collects_garbage():
    assert run_python(BUSY, **LEAN) == "True\n"


@pytest.fixture
def look_twice(monkeypatch):
    """Look at the main thread twice while it waits, two seconds apart, with CPU used as given."""

    def look(cpu, calls=(0, 0)):
        clocks = types.SimpleNamespace(
            monotonic=iter([0.0, 2.0, 4.0]).__next__,
            process_time=iter([0.0, cpu, 2 * cpu]).__next__,
        )  # in place of its own `time` only: other threads of the tests look at the clock, too
        monkeypatch.setattr("replicax._control._heartbeat.time", clocks)
        sampler, found, looked = Sampler(), [], threading.Event()

        def run():
            wait_until(lambda: is_waiting(threading.main_thread()))  # below
            threading.Event().wait(0.05)
            found.extend(sampler.look(2.0, each) for each in calls)
            looked.set()

        threading.Thread(target=run, daemon=True).start()
        looked.wait()
        monkeypatch.undo()
        return found

    return look


@pytest.mark.parametrize(
    ("cpu", "calls", "unmoved", "still"),
    [(0.01, (0, 0), 2.0, 2.0), (0.5, (0, 0), 2.0, 0.0), (0.01, (3, 4), 0.0, 0.0)],
    ids=["waits", "uses the CPU", "goes through exchanges"],
)
def test_who_waits_stands_still(look_twice, cpu, calls, unmoved, still):
    first, second = look_twice(cpu, calls)
    assert (first["unmoved"], first["still"]) == (0.0, 0.0)
    assert (second["unmoved"], second["still"]) == (unmoved, still)


@pytest.mark.parametrize("computing", [True, False])
def test_it_tells_whether_the_devices_compute(look_twice, computing):
    dispatched(lambda: not computing)
    second = look_twice(cpu=0.01)[1]
    dispatched(lambda: True)
    assert second["computing"] is computing
    assert second["still"] == (0.0 if computing else 2.0)


def test_the_stack_is_told_if_it_has_changed(look_twice):
    first, second = look_twice(cpu=0.01)
    assert "looked.wait()" in first["stack"]
    assert first["stack"].rstrip().endswith("looked.wait()")  # not within `threading`
    assert first["stack"].count("  File ") == 8
    assert "stack" not in second


def stack_of(*modules):
    """The files of the stack that is told of modules that call each other, the outermost first."""

    def enter(rest):
        if not rest:
            return sys._getframe(1)
        names = {"__name__": rest[0], "enter": enter, "rest": rest[1:]}
        return eval(compile("enter(rest)", f"{rest[0]}.py", "eval"), names)

    found = _stack(enter(modules))
    return [module for module in modules if f'"{module}.py"' in found]


def test_of_libraries_nothing_is_told_but_who_calls_them():
    found = stack_of(
        "theirs", "keras.src.trainers", "mine", "replicax._keras", "jax._src", "threading"
    )
    assert found == ["theirs", "mine"]


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv("RX_WATCHDOG_SECONDS", raising=False)
    monkeypatch.delenv("RX_WAIT_LIMIT_SECONDS", raising=False)


def test_without_variables_it_is_half_a_minute_and_ten():
    assert Limits.from_environ() == Limits(silence=30.0, timeout=600.0)


@pytest.mark.parametrize(("text", "timeout"), [("3600", 3600.0), (" 0 ", None)])
def test_the_variables_say_how_long(monkeypatch, text, timeout):
    monkeypatch.setenv("RX_WATCHDOG_SECONDS", " 120.5 ")
    monkeypatch.setenv("RX_WAIT_LIMIT_SECONDS", text)
    assert Limits.from_environ() == Limits(silence=120.5, timeout=timeout)


@pytest.mark.parametrize("text", ["-1", "soon", "nan", "inf"])
@pytest.mark.parametrize("name", ["RX_WATCHDOG_SECONDS", "RX_WAIT_LIMIT_SECONDS"])
def test_the_variables_are_numbers(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=f"{name} .*got '{text}'"):
        Limits.from_environ()


def test_signs_of_life_are_more_frequent_if_time_is_short():
    assert [Limits().beat, Limits(silence=1.0).beat] == [1.0, 0.2]


def test_time_in_which_the_process_was_stopped_counts_little(monkeypatch):
    times = iter([100.0, 101.0, 161.0, 161.5])
    clock = types.SimpleNamespace(monotonic=lambda: next(times))  # in place of its own alone
    monkeypatch.setattr("replicax._control._heartbeat.time", clock)
    ticks = Ticks(1.0)
    assert [ticks.tick(), ticks.tick(), ticks.tick()] == [1.0, 2.0, 0.5]
    assert ticks.now == 3.5

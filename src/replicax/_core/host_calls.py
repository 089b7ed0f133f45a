"""Host callbacks of compiled programs: prints, summaries and checks.

At exit a process waits for pending callbacks, so none is lost. On CPUs a callback runs on one of
the few threads of the devices, so it must not wait for an array there: a thread of its own waits
for large arrays.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import jax
import numpy as np
from jax.core import Tracer
from jax.dtypes import canonicalize_dtype

from replicax._core.errors import UsageError
from replicax._core.tracing import is_transformed

# XLA:CPU copies arrays below 100 KB at once, and larger ones on the threads of the devices.
_AT_ONCE_BYTES = 64 * 1024
#: The primitives of host callbacks.
CALLBACK_PRIMITIVES = ("pure_callback", "io_callback", "debug_callback")
_ARRAYS = (np.ndarray, jax.Array, Tracer)  # NumPy first: the fastest check


def call_on_host(fn: Callable[..., Any], *values: Any) -> None:
    """Call `fn` with the values as NumPy arrays whenever compiled code gets here.

    In `run` each replica makes a call; calls may overlap.
    """
    _callback_queue().open()
    jax.debug.callback(functools.partial(_callback_queue().call, fn), *values)


class Check(NamedTuple):
    """Raises if a condition is false, with the values between two texts."""

    before: str
    after: str

    def __call__(self, holds: Any, *values: Any) -> None:
        if not np.all(holds):
            raise UsageError(f"{self.before}{', '.join(map(_shown, values))}{self.after}")


def _shown(array: Any) -> str:
    return np.array2string(np.asarray(array), threshold=6, edgeitems=3).replace("\n", "")


def is_compiling(*values: Any) -> bool:
    return any(isinstance(value, Tracer) for value in values) or is_transformed()


def array_of(value: Any) -> Any:
    """The array that a value is or holds, such as a variable's or a `Mirrored`'s."""
    if isinstance(value, _ARRAYS):
        return value
    return value.__jax_array__() if hasattr(value, "__jax_array__") else np.asarray(value)


@final
class HostCallbacks:
    """The host callbacks of one program, whose errors are raised by the caller of the program.

    The program itself runs to its end, so that no device has a failed array or waits for one.
    """

    def __init__(self) -> None:
        self._runs: list[list[BaseException]] = []
        self._lock = threading.Lock()

    def run(self, program: Callable[..., Any], *args: Any) -> Any:
        """Call the compiled program, wait for it, and raise the first error of a callback.

        If several threads run it at the same time, all of them raise.
        """
        raised: list[BaseException] = []
        with self._lock:
            self._runs.append(raised)
        try:
            results = jax.block_until_ready(program(*args))
            if not _state.in_callback:  # the queue may wait for that call
                _callback_queue().wait()
        finally:
            with self._lock:
                self._runs = [run for run in self._runs if run is not raised]
        if raised:
            raise raised[0]
        return results

    def note(self, error: BaseException) -> bool:
        """Record the error of a callback; returns whether the program is running."""
        with self._lock:
            for run in self._runs:
                run.append(error)
            return bool(self._runs)


@final
@dataclass(frozen=True)
class GuardedCallback:
    """A host callback that returns zeros if it raises."""

    calls: HostCallbacks
    function: Callable[..., Any]
    results: tuple[tuple[tuple[int, ...], Any], ...]  # their shapes and types

    @classmethod
    def of(cls, equation: Any, calls: HostCallbacks) -> GuardedCallback:
        kinds = ((one.aval.shape, one.aval.dtype) for one in equation.outvars)
        function = equation.params["callback"]
        if isinstance(function, GuardedCallback):  # of a program inlined into this one
            function = function.function
        return cls(calls, function, tuple(kinds))

    def __call__(self, *arrays: Any) -> Any:
        before = _state.in_callback, _state.calls
        _state.in_callback, _state.calls = True, self.calls
        try:
            return self._checked(self.function(*arrays))
        except BaseException as error:
            if not self.calls.note(error):  # inlined into a program that is not ours
                raise
            return [np.zeros(*kind) for kind in self.results]
        finally:
            _state.in_callback, _state.calls = before

    def _checked(self, values: Any) -> Any:
        found = [(np.shape(one), canonicalize_dtype(np.asarray(one).dtype)) for one in values or ()]
        if found != list(self.results):
            raise UsageError(
                f"A function that compiled code calls must return {_kinds(self.results)}, as "
                f"declared, got {_kinds(found)}."
            )
        return values


def _kinds(found: Iterable[tuple[Any, Any]]) -> str:
    return ", ".join(f"{kind}{list(shape)}" for shape, kind in found) or "nothing"


def flush() -> None:
    """Wait until all host callbacks of dispatched programs were called."""
    # JAX raises here, in each call, an error that the failed program has raised already.
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    _callback_queue().wait()
    for error in _callback_queue().taken()[:1]:
        raise error


class _ThreadState(threading.local):
    """Whether this thread runs a host callback, and of which program."""

    in_callback = False
    calls: HostCallbacks | None = None


_state = _ThreadState()


@final
class _CallbackQueue:
    """Callbacks with large arrays, and all callbacks after them, in order."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[..., Any], Any, HostCallbacks | None]] = (
            queue.SimpleQueue()
        )
        self._left, self._idle = 0, threading.Condition()
        self._thread: threading.Thread | None = None
        self._raised: list[BaseException] = []

    def taken(self) -> list[BaseException]:
        with self._idle:
            raised, self._raised = self._raised, []
        return raised

    def _called(self, fn: Callable[..., Any], arrays: Any, calls: HostCallbacks | None) -> None:
        before, _state.in_callback = _state.in_callback, True
        try:
            fn(*map(np.asarray, arrays))
        except Exception as error:
            if threading.current_thread() is not self._thread:
                raise  # the program fails unless the callback is guarded
            if calls is None or not calls.note(error):
                with self._idle:
                    self._raised.append(error)
        finally:
            _state.in_callback = before

    def open(self) -> None:
        with self._idle:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, daemon=True, name="replicax-calls"
                )
                self._thread.start()
                # Registered after JAX's own hooks, so called before them: the devices still exist.
                atexit.register(flush)

    def call(self, fn: Callable[..., Any], *arrays: Any) -> None:
        with self._idle:
            at_once = not self._left and all(a.nbytes <= _AT_ONCE_BYTES for a in arrays)
            self._left += not at_once
        if at_once:
            self._called(fn, arrays, None)
        else:
            self._waiting.put((fn, arrays, _state.calls))

    def wait(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: not self._left)

    def _work(self) -> None:
        while True:
            fn, arrays, calls = self._waiting.get()
            try:
                self._called(fn, arrays, calls)
            finally:
                del fn, arrays, calls
                with self._idle:
                    self._left -= 1
                    self._idle.notify_all()


@functools.cache
def _callback_queue() -> _CallbackQueue:
    return _CallbackQueue()

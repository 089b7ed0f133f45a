"""Functions applied to every element, inline or in threads, and functions that choose or fold."""

from __future__ import annotations

import contextvars
import dataclasses
import inspect
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import MapFailed, ReplicaxError, UsageError
from replicax._core.tracing import call_in_pipeline
from replicax.data._element import as_element, as_returned
from replicax.data._node import (
    Cursor,
    Handles,
    Node,
    OneByOne,
    OverElements,
    Path,
    SelectionOfElements,
    filtered,
    first_spec,
)
from replicax.data._options import AUTOTUNE
from replicax.data._spec import own_copy

# Seconds: a thread costs about 30 µs a call, so AUTOTUNE calls inline below this median.
_WORTH_A_THREAD = 2e-4
_TRIAL_CALLS = 8
# Threads that wait for Python's lock may be slower than one, so AUTOTUNE times results, too.
_TRIAL_RESULTS, _OF_A_GROUP = 32, 8
_THREAD_NAME = "replicax-map"
_EXIT_PATIENCE = 2.0  # seconds to wait for calls whose results nobody takes


def call(fn: Callable[..., Any], element: Any, number: int) -> Any:
    """`fn(element)`; the parts of a tuple are separate arguments, as in tf.data."""
    try:
        # As in tf.data, a named tuple stays one argument.
        return call_in_pipeline(fn, *element if type(element) is tuple else (element,))
    except ReplicaxError:
        raise
    except Exception as error:
        raise failed(fn, f"element {number}", error) from error


def _result(fn: Callable[..., Any], element: Any, number: int) -> Any:
    return as_returned(call(fn, element, number))


def failed(fn: Callable[..., Any], where: str, error: Exception) -> MapFailed:
    """The error for a function of the user that raised `error`."""
    return MapFailed(
        f"{_name(fn)} raised {type(error).__name__} for {where}: {error}. Correct the function, or "
        "drop such elements with a `filter` before it."
    )


def _name(fn: Any) -> str:
    inner = inspect.unwrap(fn)
    code = getattr(inner, "__code__", None)
    place = f" ({PurePath(code.co_filename).name}:{code.co_firstlineno})" if code else ""
    return f"{getattr(fn, '__qualname__', repr(fn))}{place}"


@dataclass(frozen=True, eq=False)
class Map(Node):
    """`fn` of every element.

    `calls` is how many run at a time, in threads; `ordered` whether results keep their order, which
    None leaves to the options.
    """

    input: Node
    fn: Callable[..., Any]
    calls: int | None = None
    ordered: bool | None = None

    @property
    def cardinality(self) -> int:
        return self.input.cardinality

    @property
    def spec(self) -> Any:
        spec = first_spec(self)
        if self.input.batch_size is None:
            return spec
        leaves = jax.tree.leaves(self.input.spec)
        varies = any(leaf.shape and leaf.shape[0] is None for leaf in leaves)
        return _with_free_rows(spec) if varies else spec

    @property
    def sample(self) -> Node:
        return dataclasses.replace(self, input=self.input.sample, calls=None)

    def open(self, path: Path) -> Cursor:
        if self.calls is None or self.calls == 1:
            return MapCursor(self, path)
        return ThreadedMapCursor(self, path)


def _with_free_rows(spec: Any) -> Any:
    """A spec taken from one batch, whose number of rows does not bind the next."""
    return jax.tree.map(lambda leaf: leaf.unbatched().batched(None) if leaf.shape else leaf, spec)


@final
class MapCursor(OverElements):
    """Calls in order, in the thread that reads."""

    keeps = ("number", "again")

    def __init__(self, node: Map, path: Path) -> None:
        super().__init__(node, path)
        self._number = 0
        self._again: list[tuple[int, Any]] = []  # calls that ran in threads at a position

    def read(self, count: int) -> Handles:
        out: list[Any] = []
        while self._again and len(out) < count:
            number, element = self._again.pop(0)
            out.append(_result(self._node.fn, own_copy(element), number))
        for element in self._input.elements(count - len(out)):
            self._number += 1
            out.append(_result(self._node.fn, element, self._number - 1))
        return out


@final
class ThreadedMapCursor(OneByOne, OverElements):
    """Calls in threads, some elements ahead of the reader."""

    def __init__(self, node: Map, path: Path) -> None:
        super().__init__(node, path)
        self._number = 0
        # Whether this thread makes the calls; None while AUTOTUNE tries both.
        self._here = None if node.calls == AUTOTUNE else False
        self._calls: list[float] = []  # seconds of the first calls, made here by AUTOTUNE
        self._waits_here: list[float] = []  # the same with the reading of their elements
        self._waits: list[float] = []  # seconds of waiting for results of threads
        asked = os.cpu_count() or 1 if node.calls in (AUTOTUNE, None) else node.calls
        self._width = max(1, asked)
        self._pool: ThreadPoolExecutor | None = None
        self._end: Callable[[], Any] | None = None
        self._running: deque[tuple[int, Any, Future[Any]]] = deque()
        self._failure: Exception | None = None  # of the input, raised after the results before it

    def make(self) -> Any:
        here = self._is_here()
        if here and not self._running and self._failure is None:
            self._end_threads()
            return self._inline()
        start = time.perf_counter()
        if not here:
            self._fill()
        if self._running:
            result = self._finished()
            if self._here is None:
                self._waits.append(time.perf_counter() - start)
            return result
        if self._failure is not None:
            failure, self._failure = self._failure, None
            try:
                raise failure
            finally:
                del failure  # it and this frame would keep each other and the threads alive
        self._end_threads()
        raise StopIteration

    def _end_threads(self) -> None:
        if self._end is not None:
            self._end()
        self._end = self._pool = None

    def _is_here(self) -> bool:
        """Whether this thread calls: at first as a trial, later if that is quicker."""
        if self._here is not None:
            return self._here
        if len(self._calls) < _TRIAL_CALLS:
            return True
        waits = self._waits[2 * self._width :]  # the earlier ones were started together
        if _median(self._calls) < _WORTH_A_THREAD:
            self._here = True
        elif len(waits) >= _TRIAL_RESULTS:
            groups = zip(*[iter(waits)] * _OF_A_GROUP, strict=True)
            self._here = min(map(sum, groups)) > _OF_A_GROUP * _median(self._waits_here)
        return bool(self._here)

    def _inline(self) -> Any:
        start = time.perf_counter()
        elements = self._input.elements(1)
        if not elements:
            raise StopIteration
        self._number += 1
        read = time.perf_counter()
        result = _result(self._node.fn, elements[0], self._number - 1)
        if self._here is None:
            end = time.perf_counter()
            self._calls.append(end - read)
            self._waits_here.append(end - start)
        return result

    def _fill(self) -> None:
        """Read until the largest number of calls run or wait."""
        while len(self._running) < 2 * self._width and self._failure is None:
            try:
                elements = self._input.elements(1)
            except Exception as error:
                self._failure = error
                return
            if not elements:
                return
            self._submit(self._number, elements[0])
            self._number += 1

    def _submit(self, number: int, element: Any) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._width, thread_name_prefix=_THREAD_NAME)
            self._end = weakref.finalize(self, _end, self._pool, self._running)
        run = contextvars.copy_context().run
        # A copy: positions hold the element, and the function may change it in place.
        future = self._pool.submit(run, _result, self._node.fn, own_copy(element), number)
        self._running.append((number, element, future))

    def _finished(self) -> Any:
        place = 0
        if self._node.ordered is False:
            wait([future for *_, future in self._running], return_when=FIRST_COMPLETED)
            place = [future.done() for *_, future in self._running].index(True)
        future = self._running[place][2]
        del self._running[place]
        try:
            return future.result()
        finally:
            del future  # as above, if it failed

    def get_state(self) -> Any:
        # Running calls are repeated later: quicker than waiting for them at each position.
        again = [(number, element) for number, element, _ in self._running]
        return {"number": self._number, "again": again, "input": self._input.get_state()}

    def set_state(self, state: Any) -> None:
        self._number = state["number"]
        self._input.set_state(state["input"])
        for number, element in state["again"]:
            self._here = False
            self._submit(number, element)


def _median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]


def _end(pool: ThreadPoolExecutor, running: deque[tuple[int, Any, Future[Any]]]) -> None:
    """End the threads; threads in slow calls end a little later."""
    pool.shutdown(wait=False, cancel_futures=True)
    if not threading.current_thread().name.startswith(_THREAD_NAME):  # not for itself
        begun = [future for *_, future in running if not future.cancelled()]
        pool.shutdown(wait=not wait(begun, _EXIT_PATIENCE).not_done)


@final
class FilterCursor(OverElements):
    """Elements that the predicate is asked about."""

    keeps = ("number", "over")

    def __init__(self, node: Filter, path: Path) -> None:
        super().__init__(node, path)
        self._number = 0
        self._over = False

    def read(self, count: int) -> Handles:
        out: list[Any] = []
        while len(out) < count and not self._over:
            # One at a time for `take_while`: behind its end the input may be endless or costly.
            elements = self._input.elements(1 if self._node.ends else count - len(out))
            self._over = not elements
            for element in elements:
                if self._passes(element):
                    out.append(element)
                else:
                    self._over = self._node.ends
                self._number += 1
        return out

    def _passes(self, element: Any) -> bool:
        verdict = call(self._node.predicate, element, self._number)
        if np.size(verdict) != 1:
            raise UsageError(
                "The function of `filter` or `take_while` must return one truth value, got an "
                f"array of shape {np.shape(verdict)}. Reduce it, as with `.all()`, or `unbatch` "
                "before you filter rows."
            )
        return bool(verdict)


@dataclass(frozen=True, eq=False)
class Filter(SelectionOfElements):
    """The elements for which `predicate` is true; with `ends`, until it is false."""

    cursor = FilterCursor

    predicate: Callable[..., Any]
    ends: bool = False

    @property
    def cardinality(self) -> int:
        return filtered(self.input.cardinality)


@final
class ScanCursor(OneByOne, OverElements):
    """A fold that yields each step."""

    keeps = ("number", "carry")

    def __init__(self, node: Scan, path: Path) -> None:
        super().__init__(node, path)
        self._carry = as_element(node.initial)
        self._number = 0

    def make(self) -> Any:
        elements = self._input.elements(1)
        if not elements:
            raise StopIteration
        # A copy: positions and later passes use the state, and `fn` may change it in place.
        result = call(self._node.fn, (own_copy(self._carry), elements[0]), self._number)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise UsageError(
                f"The function of `scan` must return a pair, got {type(result).__name__}. Return "
                "`state, output`."
            )
        self._carry, output = as_returned(result)
        self._number += 1
        return output


@dataclass(frozen=True, eq=False)
class Scan(Node):
    """The outputs of `fn(state, element)`, which also returns the next state."""

    cursor = ScanCursor

    input: Node
    initial: Any
    fn: Callable[[Any, Any], Any]

    @property
    def cardinality(self) -> int:
        return self.input.cardinality

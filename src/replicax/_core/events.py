"""What happens in this process: steps that begin, are computed, or take time, and who hears of it.

The engine tells; the watchdog reads, tools listen, `_tools.profile` measures. By default nobody
does.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

_Result = TypeVar("_Result")

INPUT, COPY, COMPUTE, COMPILE, WORKERS = "input", "copy", "compute", "compile", "workers"


#: Calls `fn(*args)` for who measures, given the part of a step that it is, `fn` and its arguments;
#: of a copy, the last argument is copied. Each step asks.
clock: Callable[..., Any] | None = None


def timed(part: str, fn: Callable[..., _Result], *args: Any) -> _Result:
    return fn(*args) if clock is None else clock(part, fn, *args)


@contextlib.contextmanager
def measured_by(one: Callable[..., Any]) -> Generator[None, None, None]:
    global clock
    before, clock = clock, one
    try:
        yield
    finally:
        clock = before


@dataclass(frozen=True)
class Step:
    """A step that has been computed, for those who watch.

    What it was, as `begin_step` was told; the nests of what it was computed from and of what it
    gave; and the variables of a step of `fit`, with their values.
    """

    doing: str
    given: Any
    result: Any
    state: Sequence[tuple[Any, Any]] = ()


#: Who hears of steps that begin, and of those that have been computed; each step asks.
listeners: list[Callable[[str], None]] = []
watchers: list[Callable[[Step], None]] = []


@dataclass
class Totals:
    """Steps of this process, and the rows of their batches, those of all workers.

    They are one value, so that another thread never sees a step without its rows.
    """

    done: tuple[int, int] = (0, 0)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, steps: int, examples: int) -> None:
        """Count steps and examples; batches may be taken in another thread than steps."""
        with self._lock:
            before = self.done
            self.done = before[0] + steps, before[1] + examples


#: Where steps and examples are counted, see `_control/metrics.py`; each step asks.
totals: Totals | None = None

_common = 0
_doing = "starting"
# Of the latest common steps: number, and checksum of all names up to it. Workers that do the same
# have the same; they are never further apart than JAX lets a program run ahead of its devices.
_history: deque[tuple[int, int]] = deque([(0, 0)], maxlen=64)
_pending: list[Callable[[], bool]] = []


def begin_step(doing: str, *, common: bool = False, identity: int = 0) -> None:
    """Note that the next step begins, such as `train step` or `run`.

    A `common` step is computed by all workers of a cluster together; `identity` is a number of its
    program, the same on all of them.
    """
    if common:
        begin_common(doing, identity)
    for listener in tuple(listeners):
        listener(doing)


def notify(make: Callable[[], Step]) -> None:
    """Show a step that has been computed to those who watch; `make` is called if anybody does."""
    if watchers:
        step = make()
        for watcher in tuple(watchers):
            watcher(step)


def watch(watcher: Callable[[Step], None]) -> Callable[[], None]:
    """Call `watcher(step)` in the thread of each step, when it has been given to the devices.

    The function that is returned ends it.
    """
    watchers.append(watcher)
    return lambda: watchers.remove(watcher)


def begin_common(doing: str, identity: int = 0) -> None:
    """Note that something begins that all workers compute together, and that is no step."""
    global _common, _doing
    _common, _doing = _common + 1, doing
    _history.append((_common, zlib.crc32(f"{doing} {identity}".encode(), _history[-1][1])))


def dispatched(is_done: Callable[[], bool]) -> None:
    """Note that the devices have something to compute that all workers compute together.

    `is_done` is asked from another thread, and does not wait.
    """
    _pending[:] = [is_done]


def clear_pending() -> None:
    """Forget what the devices had to compute, and let go of its results."""
    _pending.clear()


def is_on_devices() -> bool:
    """Whether the devices still compute the latest step: who waits for them stands not still."""
    for is_done in tuple(_pending):
        try:
            return not is_done()
        except RuntimeError:  # its memory was given to another step
            return False
    return False


def position() -> tuple[int, str]:
    """How many things all workers have begun together, and what the last one was."""
    return _common, _doing


def history() -> list[tuple[int, int]]:
    """Number and checksum of the latest common steps, which are the same on all workers."""
    return list(_history)


def listen(listener: Callable[[str], None]) -> Callable[[], None]:
    """Call `listener(doing)` in the main thread at the beginning of each step.

    The function that is returned ends it.
    """
    listeners.append(listener)
    return lambda: listeners.remove(listener)

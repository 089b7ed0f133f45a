"""Events of this process: steps that begin, that were computed, and the time of their parts.

The engine reports them. The watchdog, tools and `_tools.profile` subscribe; by default nobody does.
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


#: Called as `clock(part, fn, *args)` instead of `fn(*args)`, to measure a part of a step; the last
#: argument of a copy is the value copied. None if nobody measures. Every step reads this.
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
    """A computed step: its name as in `begin_step`, its inputs and outputs.

    A step of `fit` also has its variables and their values.
    """

    doing: str
    given: Any
    result: Any
    state: Sequence[tuple[Any, Any]] = ()


#: Called when a step begins, and when it has been computed. Every step reads these.
listeners: list[Callable[[str], None]] = []
watchers: list[Callable[[Step], None]] = []


@dataclass
class Totals:
    """Counts of steps, and of the rows of their global batches.

    Both are one value, so that another thread never reads a step without its rows.
    """

    done: tuple[int, int] = (0, 0)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, steps: int, examples: int) -> None:
        """Count steps and examples; batches may be taken in another thread than steps."""
        with self._lock:
            before = self.done
            self.done = before[0] + steps, before[1] + examples


#: The counts of `_control/metrics.py`; every step reads this.
totals: Totals | None = None

_common = 0
_doing = "starting"
# For each recent common step: its number, and a checksum of all names so far, equal on all workers.
# Workers are never further apart than JAX lets a program run ahead of its devices.
_history: deque[tuple[int, int]] = deque([(0, 0)], maxlen=64)
_pending: list[Callable[[], bool]] = []


def begin_step(doing: str, *, common: bool = False, identity: int = 0) -> None:
    """Report that a step begins, such as `train step` or `run`.

    All workers of a cluster compute a `common` step together; `identity` is a checksum of its
    program, equal on all of them.
    """
    if common:
        begin_common(doing, identity)
    for listener in tuple(listeners):
        listener(doing)


def notify(make: Callable[[], Step]) -> None:
    """Report a computed step, which `make` returns, to the watchers, if there are any."""
    if watchers:
        step = make()
        for watcher in tuple(watchers):
            watcher(step)


def watch(watcher: Callable[[Step], None]) -> Callable[[], None]:
    """Call `watcher(step)` in the thread of each step after its dispatch.

    Returns a function that unsubscribes.
    """
    watchers.append(watcher)
    return lambda: watchers.remove(watcher)


def begin_common(doing: str, identity: int = 0) -> None:
    """Report a computation that all workers begin together."""
    global _common, _doing
    _common, _doing = _common + 1, doing
    _history.append((_common, zlib.crc32(f"{doing} {identity}".encode(), _history[-1][1])))


def dispatched(is_done: Callable[[], bool]) -> None:
    """Report the dispatch of a common step. Another thread polls `is_done`, which must not wait."""
    _pending[:] = [is_done]


def clear_pending() -> None:
    """Forget the dispatched step, which frees its results."""
    _pending.clear()


def is_on_devices() -> bool:
    """Whether the devices still compute the latest step: then a waiting worker is not stuck."""
    for is_done in tuple(_pending):
        try:
            return not is_done()
        except RuntimeError:  # another step has donated its memory
            return False
    return False


def position() -> tuple[int, str]:
    """The number of common computations so far, and the name of the last one."""
    return _common, _doing


def history() -> list[tuple[int, int]]:
    """Numbers and checksums of recent common steps, equal on all workers."""
    return list(_history)


def listen(listener: Callable[[str], None]) -> Callable[[], None]:
    """Call `listener(doing)` in the main thread when a step begins.

    Returns a function that unsubscribes.
    """
    listeners.append(listener)
    return lambda: listeners.remove(listener)

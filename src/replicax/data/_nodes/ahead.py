"""Reading ahead in a background thread."""

from __future__ import annotations

import contextvars
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, final

from replicax.data._node import (
    Cursor,
    Feed,
    Handles,
    Node,
    Path,
    SelectionOfElements,
    open_elements,
)
from replicax.data._spec import num_rows, own_copy, refuse_composites

_EXIT_PATIENCE = 2.0  # seconds that the program's end waits for a read in progress


@dataclass(eq=False)
class _Buffer:
    """The state that the thread and the reader share.

    The thread never refers to the reader, so that dropping the reader ends the thread. These queues
    hand over in a fifth of the time that a condition takes.
    """

    size: int
    portion: int
    items: SimpleQueue[tuple[str, Any, Any]] = field(default_factory=SimpleQueue)
    taken: SimpleQueue[None] = field(default_factory=SimpleQueue)  # an entry for each portion taken
    counted: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # values taken
    stopped: bool = False

    def fill(self, make: Callable[[], tuple[str, Any, Any]]) -> None:
        waiting = 0
        while True:
            if waiting == self.size:
                self.taken.get()
                waiting -= self.portion
            if self.stopped:
                return
            item = make()
            is_last = item[0] != "value"
            self.items.put(item)
            del item  # an error refers to this frame: they would keep each other alive
            if is_last:
                return
            waiting += 1

    def take(self) -> tuple[str, Any, Any]:
        item = self.items.get()
        if self.stopped:
            item = "end", None, None
        if item[0] == "value":
            if next(self.counted) % self.portion == 0:
                self.taken.put(None)
        else:
            self.stop()  # for other waiting readers
        return item

    def stop(self) -> None:
        self.stopped = True
        self.taken.put(None)
        self.items.put(("end", None, None))


@final
class Ahead:
    """At most `size` values that a thread makes before they are asked for.

    `produce` raises StopIteration at the end; `snapshot` is the position after its last value. The
    thread makes a `portion` at a stretch and sleeps until as many were taken, which makes cheap
    values cheaper, because the processor's caches stay warm.
    """

    def __init__(
        self,
        produce: Callable[[], Any],
        snapshot: Callable[[], Any],
        size: int,
        portion: int = 1,
    ) -> None:
        self._produce = produce
        self._snapshot = snapshot
        self._buffer = _Buffer(max(size, portion), portion)
        self._thread: threading.Thread | None = None
        self._over: tuple[str, Any, Any] | None = None
        self.state: Any = None

    def __next__(self) -> Any:
        """The next value; an error of `produce` comes after the values before it."""
        if self._over is None:
            self.begin()
            kind, value, state = self._buffer.take()
            if kind == "value":
                self.state = state
                return value
            self._over = ("end", None, None)
            if kind == "error":
                try:
                    raise value
                finally:
                    del value
        raise StopIteration

    def close(self) -> None:
        """End the thread; waiting values are dropped."""
        self._buffer.stop()

    def begin(self) -> None:
        """Start the thread, at the first use: until then a position may be set on the source."""
        if self._thread is not None:
            return
        run = contextvars.copy_context().run
        arguments = (self._buffer, self._produce, self._snapshot)
        self._thread = threading.Thread(
            target=run, args=(_fill, *arguments), name="replicax-ahead", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, _end, self._buffer, self._thread)


def _fill(buffer: _Buffer, produce: Callable[[], Any], snapshot: Callable[[], Any]) -> None:
    def make() -> tuple[str, Any, Any]:
        try:
            return "value", produce(), snapshot()
        except StopIteration:
            return "end", None, None
        except BaseException as error:
            return "error", error, None

    buffer.fill(make)


def _end(buffer: _Buffer, thread: threading.Thread) -> None:
    buffer.stop()
    if thread is not threading.current_thread():
        thread.join(_EXIT_PATIENCE)


@final
class PrefetchCursor(Cursor):
    """Elements that a thread has read, portion by portion."""

    def __init__(self, node: Prefetch, path: Path) -> None:
        self._source = open_elements(node.input, path)
        self._before = self._source.get_state()  # the position before the present portion
        self._after = self._before
        self._portion: list[Any] = []
        self._taken = 0  # of the present portion
        read = portions_of(self._source, node.portion)
        self._ahead = Ahead(read, self._source.get_state, node.size)

    def read(self, count: int) -> Handles:
        out: list[Any] = []
        while len(out) < count:
            if self._taken == len(self._portion) and not self._next_portion():
                break
            more = self._portion[self._taken : self._taken + count - len(out)]
            out += more
            self._taken += len(more)
        return out

    def _next_portion(self) -> bool:
        try:
            self._portion = next(self._ahead)
        except StopIteration:
            return False
        self._before, self._after, self._taken = self._after, self._ahead.state, 0
        return True

    def get_state(self) -> Any:
        if self._taken == len(self._portion):
            return {"place": self._after, "taken": 0}
        return {"place": self._before, "taken": self._taken}

    def set_state(self, state: Any) -> None:
        self._source.set_state(state["place"])
        self._before = self._after = state["place"]
        self.skip(state["taken"])


@dataclass(frozen=True, eq=False)
class Prefetch(SelectionOfElements):
    """The elements, read ahead by a thread: up to `size` portions of `portion` elements.

    A hand-over between threads takes some 50 µs; portions share it among small elements.
    """

    cursor = PrefetchCursor
    size: int
    portion: int = 1

    @property
    def sample(self) -> Node:
        return self.input.sample


def portions_of(source: Cursor, count: int) -> Callable[[], list[Any]]:
    """A function that reads the next elements, for a thread that must not refer to more."""

    def produce() -> list[Any]:
        elements = list(source.read(count))
        if not elements:
            raise StopIteration
        return elements

    return produce


def batches_of(feed: Feed) -> Callable[[], Any]:
    """A function that makes the next batch of a feed, in memory of its own."""

    def produce() -> Any:
        for batch in feed.elements(1):
            refuse_composites(batch)
            num_rows(batch)
            return own_copy(batch)
        raise StopIteration

    return produce


def read_ahead(produce: Callable[[], Any], size: int) -> Iterator[Any]:
    """The values of `produce` up to StopIteration, from a thread that ends with the iterator."""
    ahead = Ahead(produce, lambda: None, size)
    try:
        while True:
            try:
                value = next(ahead)
            except StopIteration:
                return
            yield value
    finally:
        ahead.close()

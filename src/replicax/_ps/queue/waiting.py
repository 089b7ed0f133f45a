"""`WaitingLine`: the waiting closures in order, and which worker may take which; without locks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from replicax._ps.queue.closures import Closure


@final
class WaitingLine:
    """Closures in the order in which they are to run: one line for all workers, one for each.

    A closure with a tag waits for the worker of that number; the others for any worker.
    """

    def __init__(self) -> None:
        self._common: deque[Closure] = deque()
        self._tagged: dict[int, deque[Closure]] = {}
        self._workers: set[int] = set()
        self._retired: set[int] = set()

    def __len__(self) -> int:
        return len(self._common) + sum(map(len, self._tagged.values()))

    @property
    def for_any(self) -> int:
        """The number of closures that wait for any worker."""
        return len(self._common)

    @property
    def has_workers(self) -> bool:
        """Whether there is a worker that has not been retired."""
        return bool(self._workers)

    def admit(self, worker: int) -> None:
        """Note that a worker takes closures from now on."""
        self._workers.add(worker)
        self._retired.discard(worker)

    def retire(self, worker: int) -> list[Closure]:
        """Note that a worker takes no more closures; return those that no worker can take."""
        self._workers.discard(worker)
        self._retired.add(worker)
        mine = self._tagged.pop(worker, ())
        self._common.extend(closure for closure in mine if closure.movable)
        return [closure for closure in mine if not closure.movable]

    def is_retired(self, worker: int) -> bool:
        """Whether the worker will not come back."""
        return worker in self._retired

    def is_stranded(self, closure: Closure) -> bool:
        """Whether a closure can only run on a worker that will not come back."""
        return closure.tag in self._retired and not closure.movable

    def add(self, closure: Closure) -> None:
        """Let a closure wait behind all others."""
        self._line_of(closure).append(closure)

    def add_first(self, closure: Closure) -> None:
        """Let a closure wait before all others."""
        self._line_of(closure).appendleft(closure)

    def take(self, worker: int) -> Closure:
        """Take the next closure for this worker, first one that only it can run."""
        mine = self._tagged.get(worker)
        return (mine or self._common).popleft()

    def has(self, worker: int) -> bool:
        """Whether there is one for this worker."""
        return bool(self._common or self._tagged.get(worker))

    def clear(self) -> list[Closure]:
        """Take all, in order."""
        everything = [*self._common, *(c for line in self._tagged.values() for c in line)]
        self._common.clear()
        self._tagged.clear()
        return everything

    def _line_of(self, closure: Closure) -> deque[Closure]:
        if closure.tag is None or closure.tag in self._retired:
            return self._common
        return self._tagged.setdefault(closure.tag, deque())

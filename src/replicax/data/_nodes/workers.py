"""Worker processes as the reader sees them; `_worker_pool` runs them."""

from __future__ import annotations

import pickle
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import UsageError, WorkerDied, needs
from replicax.data._node import Node, OneByOne, Path, SelectionOfElements
from replicax.data._nodes.cache import Cache

if TYPE_CHECKING:
    from replicax.data._worker_pool import WorkerPool


def _has_cache(node: Node) -> bool:
    keeps = isinstance(node, Cache) and node.table is None
    return keeps or any(_has_cache(inner) for inner in node.inputs)


def in_this_process(node: Node) -> Node:
    """`node` without worker processes, for a worker, which must not start others."""
    inner = node.rebuilt(in_this_process)
    return inner.input if isinstance(inner, InProcesses) else inner


@dataclass(frozen=True)
class Job:
    """The work of a pass: the elements after `offset`, of which `taken` were read.

    A note is a worker's last known position and the number of elements it gave since.
    """

    node: Node
    path: Path
    offset: int
    taken: int
    notes: tuple[tuple[Any, int], ...]


@final
class WorkersCursor(OneByOne):
    """Elements from the workers in turn, which gives the order of the pipeline."""

    def __init__(self, node: InProcesses, path: Path) -> None:
        self._node = node
        self._path = path
        self._offset = 0
        self._taken = 0
        self._notes: list[tuple[Any, int]] = [(None, 0)] * node.num_workers
        self._pool: WorkerPool | None = None
        self._over: tuple[str, Any, Any] | None = None

    def make(self) -> Any:
        kind, value, note = self._over or self._received()
        if kind == "end":
            self._close((kind, value, note))
            raise StopIteration
        if kind == "death":
            raise WorkerDied(
                f"A worker process of `in_processes` ended early: {value} Look at its output. "
                "Exit code -9: memory ran out, lower `num_workers` or `buffer_size`. -7: /dev/shm "
                "is full. 1 at the start: put the program under `if __name__ == '__main__':`."
            )
        turn = self._taken % len(self._notes)
        self._taken += 1
        position, since = self._notes[turn]
        self._notes[turn] = (position, since + 1) if note is None else (pickle.loads(note), 0)
        if kind == "error":
            raise value
        return value

    def _received(self) -> tuple[str, Any, Any]:
        if self._pool is None:
            self._pool = self._started()
        try:
            return self._pool.receive()
        except Exception as error:  # the pipeline's own errors are packets, so this one is Grain's
            return self._close(("death", f"{type(error).__name__}: {error}", None))

    def _started(self) -> WorkerPool:
        with needs("`in_processes`", extra="data"):
            from replicax.data._worker_pool import WorkerPool
        node = in_this_process(self._node.input)
        job = Job(node, self._path, self._offset, self._taken, tuple(self._notes))
        pool = WorkerPool(job, self._node.buffer_size)
        weakref.finalize(self, pool.end)
        return pool

    def _close(self, over: tuple[str, Any, Any]) -> tuple[str, Any, Any]:
        self._over = over
        if self._pool is not None:
            self._pool.end()
        return over

    def get_state(self) -> Any:
        notes = [list(note) for note in self._notes]
        return {"offset": self._offset, "taken": self._taken, "notes": notes}

    def set_state(self, state: Any) -> None:
        if len(state["notes"]) == len(self._notes):
            self._offset, self._taken = state["offset"], state["taken"]
            self._notes = [(position, since) for position, since in state["notes"]]
        else:  # with another number of workers only the sum of the notes is valid
            self._offset = state["offset"] + state["taken"]


@dataclass(frozen=True, eq=False)
class InProcesses(SelectionOfElements):
    """The elements, made by `num_workers` processes; each keeps `buffer_size` ready."""

    cursor = WorkersCursor
    num_workers: int
    buffer_size: int

    def __post_init__(self) -> None:
        if _has_cache(self.input):
            raise UsageError(
                "`cache()` before `in_processes` would fill the memory of worker processes, which "
                "end with the pass. Call `cache()` after `in_processes`, or give it a file name."
            )

    @property
    def sample(self) -> Node:
        return self.input.sample  # one element is not worth starting processes

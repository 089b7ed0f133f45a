"""Workers in step: before each batch every worker announces its number of rows.

A worker announces a batch when it has read it, and receives the other announcements when it
computes with the batch. Several batches in memory are announced at once. Without this, a worker
whose data ends early would leave the others waiting in the next all-reduce, and a worker with other
shapes would compute wrong numbers.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import jax
import numpy as np

from replicax._core.channel import Offer
from replicax._core.errors import WorkersDiffer, by_worker
from replicax._input.sharing import zero_batch

if TYPE_CHECKING:
    from replicax._input.sharing import WorkerBatch


Announce = Callable[[str, Any], Offer]


class Step(NamedTuple):
    """This worker's batch of a step, and the rows of each replica of each worker."""

    batch: WorkerBatch
    sizes: tuple[tuple[int, ...], ...]

    @property
    def is_even(self) -> bool:
        """Whether all replicas have the same number of rows."""
        return len({rows for worker in self.sizes for rows in worker}) == 1


@final
class InStep:
    """The steps of one pass over a data set.

    `name` is the same on all workers. `offer` announces a value to all workers and returns their
    values later; all workers call it together. `source` describes the batches of a worker that
    never reads any. With `is_same`, all workers must read the same data.
    """

    def __init__(self, offer: Announce, name: str, source: Any, *, is_same: bool) -> None:
        self._offer = offer
        self._name = name
        self._source = source
        self._is_same = is_same
        self._latest: WorkerBatch | None = None
        self._kind: Any = None
        self._specs: list[str] = []  # the latest of each worker
        self._num_announced = 0  # batches of this worker
        self._num_taken = 0
        self._is_over = False  # whether this worker has announced its end
        # The sizes and checksums of each worker's next steps; the sizes are None at its end.
        self._next_steps: list[deque[tuple[list[int] | None, str]]] = []
        self._pending: deque[Offer] = deque()
        self._lock = threading.Lock()
        # A pass that is abandoned has announced batches that nobody takes.
        weakref.finalize(self, _withdraw, self._pending).atexit = False

    def announce(self, batch: WorkerBatch | None) -> None:
        """Announce the next batch, in any thread; `next` takes batches in the same order.

        The first of several batches known together announces all of them; None the end.
        """
        steps = [(None, "")] if batch is None else batch.announcements
        if not steps:
            return
        changed, self._is_over = "", batch is None
        if batch is not None and (kind := _kind_of(batch)) != self._kind:
            changed, self._kind = _described(kind), kind
        self._send(changed, steps)

    def _send(self, changed: str, steps: Sequence[tuple[list[int] | None, str]]) -> None:
        with self._lock:  # answers are received in the order of offers
            self._num_announced += len(steps)
            self._pending.append(self._offer(self._name, [changed, list(steps)]))

    def next(self, batch: WorkerBatch | None) -> Step:
        """The next step, with the first `batch` that this worker has announced, None at its end.

        Raises StopIteration if no worker has rows left, `WorkersDiffer` if their batches differ in
        structure, shapes or types, or in their data with `is_same`.
        """
        while not self._next_steps or not all(self._next_steps):
            self._receive(batch)
        found = [steps[0] if steps[0][0] is None else steps.popleft() for steps in self._next_steps]
        if all(rows is None for rows, _ in found):
            raise StopIteration
        self._num_taken += 1
        self._check([digest for rows, digest in found if rows is not None], len(found))
        if batch is None:
            latest = self._latest or zero_batch(self._source, [0] * self._source.replicas)
            batch = latest.without_rows()
        self._latest = batch
        empty = [0] * len(batch.pieces)
        return Step(batch, tuple(tuple(rows or empty) for rows, _ in found))

    def _receive(self, batch: WorkerBatch | None) -> None:
        """Receive announcements, because the next step of some worker is unknown."""
        if not self._pending:
            if self._num_announced > self._num_taken or self._is_over:
                self._send("", ())  # another worker announces fewer steps at a time
            else:
                self.announce(batch)
        received = self._pending.popleft().answers()
        before = self._specs or [""] * len(received)
        self._specs = [new or old for (new, _), old in zip(received, before, strict=True)]
        self._next_steps = self._next_steps or [deque() for _ in received]
        for steps, (_, more) in zip(self._next_steps, received, strict=True):
            steps.extend((rows, digest) for rows, digest in more)
        if len({spec for spec in self._specs if spec}) > 1:
            raise WorkersDiffer("kind of batches", ["shapes and types"], by_worker(self._specs))

    def _check(self, digests: Sequence[str], workers: int) -> None:
        what = "data, as it is divided by DATA"
        if self._is_same and len(digests) < workers:
            facts = f"    {len(digests)} of {workers} workers have another batch"
            raise WorkersDiffer(what, ["number of batches"], facts)
        if self._is_same and len(set(digests)) > 1:
            raise WorkersDiffer(what, ["batch (its checksum)"], by_worker(digests))


def _withdraw(pending: deque[Offer]) -> None:
    for offer in pending:
        offer.withdraw()


def _kind_of(batch: WorkerBatch) -> Any:
    """The structure, shapes and dtypes of a worker's batches, without the number of rows."""
    leaves, tree = jax.tree.flatten(batch.pieces[0])
    return tree, [(np.shape(leaf)[1:], np.asarray(leaf).dtype) for leaf in leaves]


def _described(kind: Any) -> str:
    tree, leaves = kind
    kinds = [f"{dtype}{[None, *shape]}" for shape, dtype in leaves]
    return f"{', '.join(kinds)} in {tree}"

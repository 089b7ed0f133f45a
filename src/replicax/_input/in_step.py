"""Workers in step: before each batch all of them say how many rows they bring.

They say so when they have read it, or know it, and hear of the others when they compute with it.
Of batches in memory they know several at once, and say so once for all of these. A worker that
ended by itself would leave the others waiting in the next all-reduce, and one with other shapes
would compute wrong numbers.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

import jax
import numpy as np

from replicax._core.errors import WorkersDiffer, by_worker
from replicax._input.sharing import blank

if TYPE_CHECKING:
    from replicax._input.sharing import Share


class Told(Protocol):
    """A value that this worker has told the others."""

    def answers(self) -> list[Any]:
        """Those of all, in worker order; waits for them. Once."""
        ...

    def withdraw(self) -> None:
        """Nobody will ask for them. It may be said anywhere, at any time."""
        ...


Tell = Callable[[str, Any], Told]


class Step(NamedTuple):
    """What a worker computes in a step, and for each worker the rows of each of its replicas."""

    share: Share
    sizes: tuple[tuple[int, ...], ...]

    @property
    def is_even(self) -> bool:
        """Whether all replicas have as many rows."""
        return len({rows for worker in self.sizes for rows in worker}) == 1


@final
class InStep:
    """The steps of one pass over a data set, whose name is the same on all workers.

    `tell` tells all of them a value, and gets theirs later; all call it together. `shares` is for a
    worker that never has any rows. `is_same`: all read the same data.
    """

    def __init__(self, tell: Tell, name: str, shares: Any, *, is_same: bool) -> None:
        self._tell = tell
        self._name = name
        self._shares = shares
        self._is_same = is_same
        self._latest: Share | None = None
        self._kind: Any = None
        self._specs: list[str] = []  # of all workers, as they were last told
        self._told = self._taken = 0  # of the shares of this worker
        self._is_over = False  # whether the end was announced
        # Of each worker, sizes and checksums of the next steps; None for sizes behind its end.
        self._known: list[deque[tuple[list[int] | None, str]]] = []
        self._announced: deque[Told] = deque()
        self._lock = threading.Lock()
        # Who leaves a pass in its midst has announced more than he took.
        weakref.finalize(self, _withdraw, self._announced).atexit = False

    def announce(self, share: Share | None) -> None:
        """Tell the others of the next share, in any thread; it is taken in the same order.

        Shares that are known together are told of with the first.
        """
        known = [(None, "")] if share is None else share.known
        if not known:
            return
        changed, kind = "", kind_of(share)
        if kind is not None and kind != self._kind:
            changed, self._kind = described(kind), kind
        self._is_over = share is None
        self._tell_all(changed, known)

    def _tell_all(self, changed: str, known: Sequence[tuple[list[int] | None, str]]) -> None:
        with self._lock:  # what is told first is answered first
            self._told += len(known)
            self._announced.append(self._tell(self._name, [changed, list(known)]))

    def next(self, share: Share | None) -> Step:
        """The next step.

        `share` is the first of those that this worker announced; None after its last. StopIteration
        if no worker has any rows left, `WorkersDiffer` if their batches do not fit together.
        """
        while not self._known or not all(self._known):
            self._hear(share)
        told = [steps[0] if steps[0][0] is None else steps.popleft() for steps in self._known]
        if all(rows is None for rows, _ in told):
            raise StopIteration
        self._taken += 1
        self._check([digest for rows, digest in told if rows is not None], len(told))
        if share is None:
            latest = self._latest or blank(self._shares, [0] * self._shares.replicas)
            share = latest.without_rows()
        self._latest = share
        nothing = [0] * len(share.pieces)
        return Step(share, tuple(tuple(rows or nothing) for rows, _ in told))

    def _hear(self, share: Share | None) -> None:
        """Hear what all have announced; of somebody, nothing is known of the next step."""
        if not self._announced:
            if self._told > self._taken or self._is_over:
                self._tell_all("", ())  # others know of fewer steps at a time
            else:
                self.announce(share)
        told = self._announced.popleft().answers()
        before = self._specs or [""] * len(told)
        self._specs = [new or old for (new, _), old in zip(told, before, strict=True)]
        self._known = self._known or [deque() for _ in told]
        for steps, (_, more) in zip(self._known, told, strict=True):
            steps.extend((rows, digest) for rows, digest in more)
        if len({spec for spec in self._specs if spec}) > 1:
            raise WorkersDiffer("kind of batches", ["shapes and types"], by_worker(self._specs))

    def _check(self, digests: Sequence[str], workers: int) -> None:
        if self._is_same and len(digests) < workers:
            facts = f"    {len(digests)} of {workers} workers have another batch"
            raise WorkersDiffer("data, as it is divided by DATA", ["number of batches"], facts)
        if self._is_same and len(set(digests)) > 1:
            raise WorkersDiffer(
                "data, as it is divided by DATA", ["batch (its checksum)"], by_worker(digests)
            )


def _withdraw(announced: deque[Told]) -> None:
    for told in announced:
        told.withdraw()


def kind_of(share: Share | None) -> Any:
    """The nesting, shapes and types of a worker's batches; None if it has none."""
    if share is None:
        return None
    leaves, tree = jax.tree.flatten(share.pieces[0])
    return tree, [(np.shape(leaf)[1:], np.asarray(leaf).dtype) for leaf in leaves]


def described(kind: Any) -> str:
    """The same in words."""
    tree, leaves = kind
    kinds = [f"{dtype}{[None, *shape]}" for shape, dtype in leaves]
    return f"{', '.join(kinds)} in {tree}"

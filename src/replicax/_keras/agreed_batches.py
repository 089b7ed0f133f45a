"""Batches of `fit` that all workers have to have: compared while the batch before is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from replicax._control.agreement import Agreement
from replicax._core.program import checksum, glance

SAME_BATCHES = (
    "`fit`, `evaluate` and `predict` divide batches that all workers have: pass the same arrays "
    "to all, and seed a generator that draws random numbers. If each worker has rows of its own, "
    "make the data set with `strategy.distribute_datasets_from_function`."
)


def agreement_on(batch: Any, number: int, *, whole: bool) -> Agreement:
    """Begin to compare a batch with those of all workers.

    Its number in this pass is from 0. If it is `whole`, every device gets all of it, so that all of
    it must be the same.
    """
    leaves = jax.tree.leaves(batch)
    kinds = ", ".join(f"{leaf.dtype}{list(np.shape(leaf))}" for leaf in leaves)
    found = f"{kinds}, checksum {(checksum if number == 0 or whole else glance)(batch)}"
    return Agreement("batches", {f"batch {number} of this pass": found}, fix=SAME_BATCHES)


def agreed(batches: Iterable[tuple[Any, Agreement | None]], *, ahead: int) -> Iterator[Any]:
    """Batches, each once it is known that all workers have the same.

    They come with what was begun to compare each. So many are taken `ahead`, before they are
    needed.
    """
    waiting: deque[tuple[Any, Agreement | None]] = deque()
    try:
        for batch in batches:
            waiting.append(batch)
            if len(waiting) > ahead:
                yield _required(*waiting.popleft())
        while waiting:
            yield _required(*waiting.popleft())
    finally:
        for _, agreement in waiting:
            if agreement is not None:
                agreement.withdraw()


def _required(batch: Any, agreement: Agreement | None) -> Any:
    if agreement is not None:
        agreement.require()
    return batch

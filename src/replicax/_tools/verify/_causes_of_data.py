"""Causes before the first computation: initial values and the rows of batches."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from replicax._tools.verify._compare import ROWS, START, STEPS, count, rows
from replicax._tools.verify._evidence import Cause

if TYPE_CHECKING:
    from replicax._tools.verify._evidence import Evidence


BATCH_TOO_LARGE = "batch too large"


def start(evidence: Evidence) -> Cause | None:
    """Different initial values."""
    if not evidence.of(START):
        return None
    return Cause(
        "seed by replica",
        "the initial values are others: a seed, or a shape, depends on the strategy, the rank or "
        "the number of replicas.",
    )


def steps(evidence: Evidence) -> Cause | None:
    """More or fewer steps."""
    if not evidence.of(STEPS):
        return None
    fewer = len(evidence.other.steps) < len(evidence.reference.steps)
    if fewer:
        return Cause("rows dropped", "there are fewer steps: a batch is left out, often the last.")
    return Cause("different data", "there are more steps: the batches are cut otherwise.")


def batches(evidence: Evidence) -> Cause | None:
    """Other rows in a step."""
    if not evidence.of(ROWS):
        return None
    mine, theirs = evidence.pieces
    ours = Counter(row for piece in mine for row in piece)
    others = Counter(row for piece in theirs for row in piece)
    several = len(theirs) > 1 and len(theirs[0]) > 0
    if several and all(piece == theirs[0] for piece in theirs):
        return Cause(
            "wrong shard", "every replica reads the same rows: they all take the same shard."
        )
    twice = _read_twice(evidence)
    if several and twice:
        return Cause(
            "wrong shard",
            f"{twice} rows are read twice in these steps: shards overlap, or each is taken from an "
            "order of its own, shuffled with another seed.",
        )
    if count(theirs) == evidence.replicas * count(mine):
        return Cause(
            BATCH_TOO_LARGE,
            "each replica gets as many rows as one device: the batch size is that of a replica, "
            "or is multiplied by the number of replicas.",
        )
    missing, added = (ours - others).total(), (others - ours).total()
    if not added:
        return Cause("rows dropped", f"{missing} rows are left out, often those of an uneven batch")
    return Cause(
        "different data",
        f"{added} rows are others than on one device: the order, the seed or the batches depend on "
        "the strategy.",
    )


def _read_twice(evidence: Evidence) -> int:
    """The number of rows that recur in the steps seen, if none does on one device."""
    both = zip(evidence.reference.steps, evidence.other.steps, strict=False)
    ours, theirs = Counter[tuple[bytes, ...]](), Counter[tuple[bytes, ...]]()
    for mine, other in both:
        for found, pieces in zip((ours, theirs), rows(mine, other), strict=True):
            found.update(row for piece in pieces for row in piece)
    return theirs.total() - len(theirs) if ours.total() == len(ours) else 0

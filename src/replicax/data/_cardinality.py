"""The number of elements of a data set, where it can be known without reading."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import numpy as np

INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2


@final
class Cardinality(int):
    """A number of elements, which programs for tf.data read with `numpy()`."""

    def numpy(self) -> np.int64:
        """The number, as NumPy has it."""
        return np.int64(self)


def taken(cardinality: int, count: int) -> int:
    """The number of the first `count` elements; a negative count takes all."""
    if count < 0 or cardinality == UNKNOWN_CARDINALITY:
        return cardinality if count else 0
    return count if cardinality == INFINITE_CARDINALITY else min(cardinality, count)


def skipped(cardinality: int, count: int) -> int:
    """The number behind the first `count` elements; a negative count skips all."""
    if count < 0:
        return 0
    return cardinality if cardinality < 0 else max(0, cardinality - count)


def repeated(cardinality: int, count: int) -> int:
    """The number in `count` passes; a negative count repeats without end."""
    if cardinality == 0 or count == 0:
        return 0
    if count < 0:
        return INFINITE_CARDINALITY
    return cardinality if cardinality < 0 else cardinality * count


def grouped(cardinality: int, size: int, *, drop_remainder: bool) -> int:
    """The number of groups of `size` elements."""
    if cardinality < 0:
        return cardinality
    return cardinality // size if drop_remainder else -(-cardinality // size)


def added(cardinalities: Iterable[int]) -> int:
    """The number of elements of several data sets in a row."""
    known = list(cardinalities)
    if INFINITE_CARDINALITY in known:
        return INFINITE_CARDINALITY
    return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in known else sum(known)


def shortest(cardinalities: Iterable[int]) -> int:
    """The number of elements side by side, until the first data set ends."""
    finite = [c for c in cardinalities if c != INFINITE_CARDINALITY]
    if UNKNOWN_CARDINALITY in finite:
        return UNKNOWN_CARDINALITY if 0 not in finite else 0
    return min(finite, default=INFINITE_CARDINALITY)


def filtered(cardinality: int) -> int:
    """The number of elements that a function chooses."""
    return 0 if cardinality == 0 else UNKNOWN_CARDINALITY

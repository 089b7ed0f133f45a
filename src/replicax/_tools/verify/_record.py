"""The record of a program's training under one strategy: plain data on the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    import numpy as np

Key = tuple[str, int]
"""A variable's kind and path without Keras' numbers, and the how-manieth of these it is."""

WEIGHT, STATISTIC, GRADIENT, NORMS = "weight", "statistic", "gradient", "norms of gradients"
SLOT, METRIC, SEED = "optimizer", "metric", "random state"


@final
@dataclass(frozen=True)
class Value:
    """A variable after a step, or a gradient, whose path is that of its weight."""

    path: str
    kind: str
    array: np.ndarray  # the first of its copies
    spread: float = 0.0  # difference of copies on several devices, relative to the first
    aggregation: str = "none"  # of different values that replicas write


@final
@dataclass(frozen=True)
class Given:
    """An array that a step was computed from, as a digest of each row."""

    pieces: tuple[tuple[bytes, ...], ...]  # a replica's rows each, or all rows of a whole batch
    is_divided: bool  # a value with a component for each replica


@final
@dataclass(frozen=True)
class Seen:
    """A step after it was computed: a `train step`, `run`, or `call of train_step`.

    A result of each replica has all of their arrays.
    """

    doing: str
    given: tuple[Given, ...]
    results: dict[str, tuple[np.ndarray, ...]]
    values: dict[Key, Value]

    def of(self, *kinds: str) -> dict[Key, Value]:
        """The variables of some kinds."""
        return {key: value for key, value in self.values.items() if value.kind in kinds}


@final
@dataclass
class Run:
    """A program's training under one strategy."""

    strategy: str
    replicas: int
    before: dict[Key, Value] = field(default_factory=dict)
    steps: list[Seen] = field(default_factory=list)
    types: set[str] = field(default_factory=set)  # that its layers compute with
    shared_draws: set[str] = field(default_factory=set)  # random operations alike on every replica
    own_draws: bool = False  # that one device would not have drawn
    error: BaseException | None = None

"""What was seen of a program's training under one strategy: plain data on the host."""

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
    """A variable after a step.

    Args:
        path: Its path; a gradient's is that of the weight.
        kind: What it is for, one of the words above.
        array: Its value; of copies, the first.
        spread: How much the copies on several devices differ, relative to the first.
        aggregation: What becomes of different values that replicas write.
    """

    path: str
    kind: str
    array: np.ndarray
    spread: float = 0.0
    aggregation: str = "none"


@final
@dataclass(frozen=True)
class Given:
    """An array that a step was computed from, as a digest of each row.

    Args:
        pieces: The rows of each replica, or all rows of a batch that was given whole.
        is_divided: Whether it is a value with a component for each replica.
    """

    pieces: tuple[tuple[bytes, ...], ...]
    is_divided: bool


@final
@dataclass(frozen=True)
class Seen:
    """A step after it was computed.

    Args:
        doing: What it was: `train step`, `run`, `call of train_step`.
        given: The arrays that it was computed from.
        results: What it said: a number or array by name; if it is of each replica, all of them.
        values: Every variable that there was.
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
    """A program's training under one strategy.

    Args:
        strategy: The strategy's name.
        replicas: How many replicas it has.
        before: The variables before the first step.
        steps: The steps.
        types: The types that its layers compute with.
        shared_draws: Random operations that drew the same numbers on every replica.
        own_draws: Whether replicas drew numbers that one device would not have drawn.
        error: What ended it, if something did.
    """

    strategy: str
    replicas: int
    before: dict[Key, Value] = field(default_factory=dict)
    steps: list[Seen] = field(default_factory=list)
    types: set[str] = field(default_factory=set)
    shared_draws: set[str] = field(default_factory=set)
    own_draws: bool = False
    error: BaseException | None = None

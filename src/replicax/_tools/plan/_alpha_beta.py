"""How long collective operations take: α for a message, β for a byte, γ for a byte that is added.

A message of b bytes takes α + b·β (Hockney, "The communication challenge for MPP", 1994). What an
algorithm sends is counted here, and α, β, γ are fitted to what was measured; which links machines
have is in `_chips.py`.

Ring: n − 1 messages of b/n to reduce so that each has a piece, as many to gather; both for an
all-reduce. No algorithm sends less (Patarasuk and Yuan, JPDC 2009). Halving and doubling sends as
much in ⌈log₂ n⌉ messages each way (Rabenseifner), a binomial tree the whole array ⌈log₂ n⌉ times
each way: the least for arrays that are small (Thakur, Rabenseifner and Gropp, IJHPCA 2005).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

ALGORITHMS = ("ring", "halving", "tree")
_REDUCES, _GATHERS = {"all-reduce", "reduce-scatter"}, {"all-reduce", "all-gather"}


@final
@dataclass(frozen=True)
class Link:
    """What a message costs.

    Args:
        alpha: Seconds of a message, however small.
        beta: Seconds of a byte that is sent: the inverse of the bandwidth.
        gamma: Seconds of a byte that is added to another.
    """

    alpha: float
    beta: float
    gamma: float = 0.0


@final
@dataclass(frozen=True)
class Cost:
    """What one participant does: messages one after the other, bytes sent, bytes added."""

    messages: float
    sent: float
    added: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.messages + other.messages, self.sent + other.sent, self.added + other.added
        )

    def seconds(self, link: Link) -> float:
        """How long it takes over such a link."""
        return self.messages * link.alpha + self.sent * link.beta + self.added * link.gamma


def cost(kind: str, size: float, participants: int, algorithm: str = "ring") -> Cost:
    """Count what one participant does for a collective operation.

    Args:
        kind: `all-reduce`, `reduce-scatter` or `all-gather`.
        size: Bytes of the whole array, which each has before it is reduced, or after it is
            gathered.
        participants: How many there are.
        algorithm: `ring`, `halving` (and doubling), or `tree`.

    Example:
        >>> cost("all-reduce", 800, 4)
        Cost(messages=6, sent=1200.0, added=600.0)
        >>> cost("all-reduce", 800, 4, "halving").messages
        4
    """
    rounds = math.ceil(math.log2(participants))
    if algorithm == "tree":
        messages, moved = rounds, float(rounds * size)
    else:
        messages = participants - 1 if algorithm == "ring" else rounds
        moved = (participants - 1) * size / participants
    total = Cost(0, 0.0, 0.0)
    if kind in _REDUCES:
        total += Cost(messages, moved, moved)
    if kind in _GATHERS:
        total += Cost(messages, moved)
    return total


def hierarchical(kind: str, size: float, levels: Sequence[int]) -> tuple[Cost, ...]:
    """Rings in rings: reduce within a group, then what each has left among groups, then gather.

    Args:
        kind: As for `cost`.
        size: Bytes of the whole array.
        levels: How many participants each level joins, the innermost first.

    Returns:
        What one participant does on each level. All levels together send no more than one ring.

    Example:
        >>> [level.sent for level in hierarchical("all-reduce", 800, (4, 2))]
        [1200.0, 200.0]
    """
    found: list[Cost] = []
    for participants in levels:
        found.append(cost(kind, size, participants))
        size /= participants
    return tuple(found)


@final
@dataclass(frozen=True)
class Fit:
    """A link, and how far its predictions are from what it was fitted to.

    Args:
        link: What fits best. A part that cannot be told from the others, or that would be
            negative, is 0.
        error: The median of |predicted / measured - 1|.
    """

    link: Link
    error: float


def fit(points: Iterable[tuple[Cost, float]]) -> Fit:
    """Fit a link to measured seconds by least squares of the relative errors.

    Relative, because times differ by orders of magnitude: an array of 4 KB tells α, one of 64 MB
    tells β.

    Args:
        points: What was done, and the seconds that it took.

    Example:
        >>> link = Link(1e-4, 1e-9)
        >>> found = fit((one, one.seconds(link)) for one in [Cost(2, 1e3), Cost(2, 1e7)])
        >>> round(found.link.alpha * 1e6), round(found.link.beta * 1e12)
        (100, 1000)
    """
    done, seconds = zip(*points, strict=True)
    counts = np.array([(one.messages, one.sent, one.added) for one in done], np.float64)
    relative = counts / np.array(seconds)[:, None]
    found = np.zeros(3)
    # Of a ring's all-reduce, half of what is sent is added, always: β stands for γ then.
    tried = [0, 1, 2] if np.linalg.matrix_rank(_scaled(relative)) == 3 else [0, 1]
    while tried:
        solved = np.linalg.lstsq(_scaled(relative[:, tried]), np.ones(len(seconds)))[0]
        solved /= _scale(relative[:, tried])
        if (solved >= 0).all():
            found[tried] = solved
            break
        tried.pop(int(np.argmin(solved * _scale(relative[:, tried]))))
    errors = np.abs(relative @ found - 1)
    return Fit(Link(*map(float, found)), float(np.median(errors)))


def _scale(columns: np.ndarray) -> np.ndarray:
    """What brings columns, which differ by many powers of ten, to a length of 1."""
    lengths = np.linalg.norm(columns, axis=0)
    return np.where(lengths > 0, lengths, 1.0)


def _scaled(columns: np.ndarray) -> np.ndarray:
    return columns / _scale(columns)

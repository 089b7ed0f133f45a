"""How a program scales: its efficiency, and the parts of a step that lose it. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from replicax._tools.profile._result import Profile

STRONG, WEAK = "strong", "weak"


@final
@dataclass(frozen=True)
class Point:
    """A number of replicas, beside the smallest one.

    The ideal step is the one in which all replicas do as well as the fewest.
    """

    replicas: int
    rows: int | None  # of the whole batch
    seconds: float
    efficiency: float  # seconds of the ideal step / seconds
    lost: dict[str, float]  # seconds of each part beyond the ideal step's
    is_steady: bool = True  # whether the steps of both took about as long as each other


def points(kind: str, profiles: Sequence[Profile]) -> tuple[Point, ...]:
    """Compare profiles, from the fewest replicas to the most, with the first of them.

    `STRONG`: the batch stays the same, and the ideal step is shorter. `WEAK`: each replica's part
    stays the same, and the ideal step takes as long.
    """
    return tuple(_point(kind, profiles[0], one) for one in profiles)


def _point(kind: str, first: Profile, now: Profile) -> Point:
    factor = first.replicas / now.replicas if kind == STRONG else 1.0
    return Point(
        now.replicas,
        now.rows,
        now.seconds,
        first.seconds * factor / now.seconds,
        {part: now.parts[part] - first.parts[part] * factor for part in now.parts},
        first.is_steady and now.is_steady,
    )


def wanted_rows(kind: str, first: Profile, replicas: int) -> int | None:
    """The rows that a batch needs on this many replicas; None if they cannot be seen."""
    if first.rows is None:
        return None
    return first.rows if kind == STRONG else first.rows * replicas // first.replicas

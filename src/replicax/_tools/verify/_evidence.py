"""The evidence of a run that differs, and its cause; the rules are in `_causes.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from replicax._tools.verify._compare import Difference, Pieces, count, rows
from replicax._tools.verify._record import GRADIENT, NORMS, WEIGHT, Run, Seen

NEAR = 1e-2
"""How near a ratio must be to a number to be taken for it."""


@final
@dataclass(frozen=True)
class Cause:
    """The likely cause of a run's difference from one device's.

    In a few words, as in docs/tools.md, and in a sentence with the numbers that support it.
    """

    name: str
    text: str


@final
@dataclass(frozen=True)
class Evidence:
    """The evidence of a run that differs from one device's: the first differing step."""

    reference: Run
    other: Run
    found: Sequence[Difference]

    @property
    def replicas(self) -> int:
        """How many replicas the run has."""
        return self.other.replicas

    def of(self, *kinds: str) -> list[Difference]:
        """The differences of some kinds."""
        return [one for one in self.found if one.kind in kinds]

    @cached_property
    def steps(self) -> tuple[Seen, Seen] | None:
        """The differing step of both runs."""
        number = self.found[0].step if self.found else 0
        both = self.reference.steps, self.other.steps
        if not 0 < number <= min(map(len, both)):
            return None
        return both[0][number - 1], both[1][number - 1]

    @cached_property
    def pieces(self) -> tuple[Pieces, Pieces]:
        """The rows of that step of both runs, by replica."""
        return rows(*self.steps) if self.steps else ([], [])

    @cached_property
    def is_uneven(self) -> bool:
        """Whether the replicas do not divide the rows of that step."""
        return count(self.pieces[0]) % self.replicas != 0

    @cached_property
    def updates(self) -> list[Difference]:
        """The gradients that differ; if none was seen, the changes of weights."""
        seen = self.steps is not None and bool(self.steps[1].of(GRADIENT))
        return self.of(GRADIENT if seen else WEIGHT)

    @cached_property
    def norms(self) -> np.ndarray:
        """The norms of each replica's gradients, by variable; empty if not seen."""
        found = list(self.steps[1].of(NORMS).values()) if self.steps else []
        fitting = [one.array for one in found if one.array.shape[:1] == (self.replicas,)]
        return np.concatenate(fitting, axis=1) if fitting else np.zeros((0, 0))

    def factor(self, differences: Sequence[Difference]) -> float | None:
        """The one factor by which all values differ from one device's, if there is one."""
        ratios = [one.ratio for one in differences]
        one_number = ratios and max(ratios) - min(ratios) <= NEAR * max(map(abs, ratios))
        pure = all(one.rest <= max(NEAR, one.allowed) for one in differences)
        return ratios[0] if one_number and pure else None


Rule = Callable[[Evidence], Cause | None]

"""How often and when each row was used, and which rows are to be given up for it."""

from __future__ import annotations

from typing import final

import numpy as np


@final
class Usage:
    """Counters of rows."""

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.uint32)
        self._last_use = np.zeros(0, np.int64)

    def grow(self, rows: int) -> None:
        """Have room for so many rows."""
        more = rows - len(self._counts)
        if more > 0:
            self._counts = np.concatenate([self._counts, np.zeros(more, np.uint32)])
            self._last_use = np.concatenate([self._last_use, np.zeros(more, np.int64)])

    def begin(self, rows: np.ndarray, now: int) -> None:
        """Forget what these rows were used for before."""
        self._counts[rows] = 0
        self._last_use[rows] = now

    def note(self, rows: np.ndarray, now: int, *, uses: int = 1) -> None:
        """Note that rows are in use; one that is named several times is counted once."""
        if uses:
            self._counts[rows] = self._counts[rows] + np.uint32(uses)
        self._last_use[rows] = now

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How often rows were used, and when last."""
        return self._counts[rows], self._last_use[rows]

    def write(self, rows: np.ndarray, counts: np.ndarray, last_use: np.ndarray) -> None:
        """Set what `read` gives."""
        self._counts[rows] = counts
        self._last_use[rows] = last_use

    def least_used(self, rows: np.ndarray, count: int, now: int) -> np.ndarray:
        """The `count` rows used least often, of equals those not used for longest.

        All counts are halved, so that what was used much long ago does not stay for ever.
        """
        # The last use is below one count: it decides between equals only.
        age = self._last_use[rows] / (now + 1.0)
        chosen = rows[np.argpartition(self._counts[rows] + age, count - 1)[:count]]
        self._counts >>= np.uint32(1)
        return chosen

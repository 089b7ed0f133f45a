"""Which ids a dynamic table has taken the rows of: what an increment of a snapshot has to name."""

from __future__ import annotations

from collections import deque
from typing import final

import numpy as np

# How many removals are remembered, so that an increment can name them.
_REMEMBERED = 1 << 20


@final
class Removals:
    """The ids that lost their rows, as far back as they are remembered."""

    def __init__(self) -> None:
        self._log: deque[tuple[int, np.ndarray]] = deque()
        self._length = 0
        self._forgotten = -1

    def note(self, version: int, ids: np.ndarray) -> None:
        """Remember what was removed while the table had a version."""
        self._log.append((version, ids))
        self._length += len(ids)
        while self._length > _REMEMBERED:
            self._forgotten, oldest = self._log.popleft()
            self._length -= len(oldest)

    def since(self, version: int) -> np.ndarray | None:
        """The ids removed since a version, and some before; None if that was too long ago."""
        if version <= self._forgotten:
            return None
        removed = [ids for at, ids in self._log if at >= version]
        return np.unique(np.concatenate(removed)) if removed else np.empty(0, np.int64)

    def forget(self, version: int) -> None:
        """Have no answer for any version up to this one."""
        self._log.clear()
        self._length = 0
        self._forgotten = version

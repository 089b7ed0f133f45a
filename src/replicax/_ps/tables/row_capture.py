"""`RowCapture`: rows as they were at one moment, copied while the table goes on changing.

A table that is trained by rows is changed in place, and may be large. Copying it at once would keep
all who train it waiting. So a thread about to change a row that is still wanted saves it first, and
the other rows are copied a block at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# Copied in a fraction of a millisecond, for which the table is locked.
BLOCK_BYTES = 1 << 20

Chunk = tuple[np.ndarray, list[np.ndarray]]


@final
class RowCapture:
    """Some rows of the arrays of a table, as they are at its creation.

    The arrays are the values and the slots. `wanted` is a mask, which is taken over.
    """

    def __init__(self, arrays: Sequence[Any], wanted: np.ndarray) -> None:
        self.arrays = [np.asarray(array) for array in arrays]
        self._wanted = wanted
        self._saved: list[Chunk] = []

    def save(self, rows: np.ndarray) -> None:
        """Copy rows that are about to change. The table is locked."""
        mine = rows[self._wanted[rows]]
        if len(mine):
            self._take(mine)

    def chunks(self, lock: AbstractContextManager[Any]) -> Iterator[Chunk]:
        """The rows and their contents in each array, in any order; each row once.

        `lock` is that of the table.
        """
        row_bytes = sum(array.nbytes // max(1, len(array)) for array in self.arrays)
        block = max(1, BLOCK_BYTES // max(1, row_bytes))
        gathered: list[Chunk] = []
        for start in range(0, len(self._wanted), block):
            with lock:
                mine = start + np.flatnonzero(self._wanted[start : start + block])
                if len(mine):
                    self._take(mine)
                saved, self._saved = self._saved, []
            gathered += saved
            if sum(len(rows) for rows, _ in gathered) >= block:
                yield _joined(gathered)
                gathered = []
        if gathered:
            yield _joined(gathered)

    def _take(self, rows: np.ndarray) -> None:
        self._saved.append((rows, [array[rows] for array in self.arrays]))
        self._wanted[rows] = False


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    columns = zip(*(arrays for _, arrays in chunks), strict=True)
    rows = np.concatenate([rows for rows, _ in chunks])
    return rows, [np.concatenate(column) for column in columns]

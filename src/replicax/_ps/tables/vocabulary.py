"""The row of each id in a dynamic table: a hash table in NumPy, for thousands of ids at once.

Open addressing with a vector of ids per probe: of 10,240 known ids in a million, all are found in
0.2 ms. A `dict` takes 2 ms, holds the interpreter's lock meanwhile and needs a hundred bytes per
id, where this needs about 24; a sorted array takes as long as a `dict`, and has to be copied for
each new id. `dynamic_table.py` holds the rows' contents, and gives rows up.
"""

from __future__ import annotations

from typing import final

import numpy as np

from replicax._ps.tables.initial_rows import home

_EMPTY, _GIVEN_UP = -1, -2  # a search ends at the first and passes over the second
_FEWEST_BITS = 6


@final
class Vocabulary:
    """Ids of 64 bits and their rows, which are numbered from 0 and used again once given up.

    Example:
        >>> vocabulary = Vocabulary()
        >>> vocabulary.add(np.array([10**12, -5])).tolist()
        [0, 1]
        >>> vocabulary.find(np.array([-5, 7])).tolist()
        [1, -1]
    """

    def __init__(self) -> None:
        self._ids = np.zeros(1 << (_FEWEST_BITS - 1), np.int64)  # of each row
        self._used = np.zeros(len(self._ids), bool)
        self._free = np.empty(0, np.int64)  # free rows
        self._next = 0  # the first row that was never used
        self._bits = _FEWEST_BITS
        self._index = np.full(1 << self._bits, _EMPTY, np.int32)
        self._taken = 0  # places of the index that are not empty

    def __len__(self) -> int:
        return self._next - len(self._free)

    @property
    def rows(self) -> int:
        """The number of rows ever used: the size that a table needs."""
        return self._next

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The rows of ids, in any order and with repeats; -1 for an id without one."""
        place = home(ids, self._bits)
        rows = self._index.take(place)
        mask = len(self._index) - 1
        # -1 and -2 index the end of the ids, whose values do not matter here.
        on = ((self._ids.take(rows, mode="wrap") != ids) | (rows < 0)) & (rows != _EMPTY)
        pending = on.nonzero()[0]
        step = 0
        while len(pending):
            step += 1
            # Triangular numbers visit every place, and probes that meet do not stay together.
            found = self._index.take((place[pending] + step * (step + 1) // 2) & mask)
            rows[pending] = found
            on = (self._ids.take(found, mode="wrap") != ids[pending]) | (found < 0)
            pending = pending[on & (found != _EMPTY)]
        return rows.astype(np.int64)

    def add(self, ids: np.ndarray) -> np.ndarray:
        """Give rows to ids that have none, each once."""
        again = min(len(ids), len(self._free))
        kept, used_again = np.split(self._free, [len(self._free) - again])
        fresh = np.arange(self._next, self._next + len(ids) - again)
        rows = np.concatenate([used_again, fresh])
        self._free = kept
        self._next += len(fresh)
        self._reserve_rows()
        self._ids[rows] = ids
        self._used[rows] = True
        self._taken += len(ids)
        if 2 * self._taken > len(self._index):
            self._rebuild()
        else:
            self._place(rows)
        return rows

    def remove(self, rows: np.ndarray) -> None:
        """Give up used rows, each once."""
        place, mask = home(self._ids[rows], self._bits), len(self._index) - 1
        pending, step = np.arange(len(rows)), 0
        while len(pending):
            at = (place[pending] + step * (step + 1) // 2) & mask
            here = self._index[at] == rows[pending]
            self._index[at[here]] = _GIVEN_UP
            pending = pending[~here]
            step += 1
        self._used[rows] = False
        self._free = np.concatenate([self._free, rows])

    def used_rows(self, *, without: np.ndarray | None = None) -> np.ndarray:
        """The rows of all ids, in order, without some of them."""
        used = self._used[: self._next]
        if without is not None:
            used = used.copy()
            used[without] = False
        return np.flatnonzero(used)

    def ids_of(self, rows: np.ndarray) -> np.ndarray:
        return self._ids[rows]

    def _reserve_rows(self) -> None:
        if self._next > len(self._ids):
            size = max(self._next, len(self._ids) * 3 // 2)
            self._ids = np.concatenate([self._ids, np.zeros(size - len(self._ids), np.int64)])
            self._used = np.concatenate([self._used, np.zeros(size - len(self._used), bool)])

    def _rebuild(self) -> None:
        """Rebuild the index without the places given up, at most one third full."""
        rows = self.used_rows()
        self._bits = max(_FEWEST_BITS, int(3 * len(rows)).bit_length())
        self._index = np.full(1 << self._bits, _EMPTY, np.int32)
        self._taken = len(rows)
        self._place(rows)

    def _place(self, rows: np.ndarray) -> None:
        """Enter rows whose ids are not in the index."""
        place, mask = home(self._ids[rows], self._bits), len(self._index) - 1
        step = 0
        while len(rows):
            free = self._index[place] < 0
            # Of several ids for one place the last one gets it, and the others search on.
            self._index[place[free]] = rows[free]
            homeless = self._index[place] != rows
            rows, place = rows[homeless], place[homeless]
            step += 1
            place = (place + step) & mask

"""The rows that a closure reads of tables: which, in which order, and from which part of a table.

Rows are ordered once, by the part that has them. Then the rows of a part are one slice of
everything: of the request, of the answer, and of the gradients.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from replicax._core.errors import UsageError
from replicax._core.lookup import NO_ID
from replicax._ps.tables.hashing import server_of
from replicax._ps.tables.id_sources import without


class Wanted(NamedTuple):
    """The rows that a closure reads of one table, or the ids of a dynamic one.

    Each occurs once, part after part of the table; `parts` are the slices of the parts.
    """

    rows: np.ndarray
    parts: list[slice]


def look_up(table: dict[str, Any], ids: np.ndarray) -> tuple[Wanted, np.ndarray]:
    """The rows that some ids ask for: row numbers, or ids of a dynamic table, with repeats.

    Returns the rows, and for each id its place among them. Padding is placed behind all rows that a
    program gets: nothing is read there, nor trained.
    """
    rows, positions = distinct(ids)
    padding = table.get("padding", NO_ID)
    if padding is not None:
        rows, positions = without(padding, rows, positions, table["rows"])
    if not table.get("dynamic"):
        _check_rows(table, rows)
        borders = np.searchsorted(rows, [part[2] for part in table["parts"]])
    else:
        owners = server_of(rows, len(table["parts"]))
        rows, positions = _by_owner(rows, positions, owners)
        borders = np.searchsorted(np.sort(owners), range(len(table["parts"])))
    ends = [*borders.tolist(), len(rows)]
    return Wanted(rows, [slice(*both) for both in pairwise(ends)]), positions


def distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids in order, and for each of `ids` its place: `np.unique`, in half the time.

    Example:
        >>> [array.tolist() for array in distinct(np.array([7, 3, 7]))]
        [[3, 7], [1, 0, 1]]
    """
    if not len(ids):
        return ids, np.zeros(0, np.int32)
    low, bits = int(ids.min()), len(ids).bit_length()
    if int(ids.max()) - low >= 1 << (63 - bits):
        unique, inverse = np.unique(ids, return_inverse=True)
        return unique, inverse.reshape(-1).astype(np.int32)
    # The id and its place as one number: sorting numbers is much faster than sorting places.
    keys = (ids - low) << bits
    keys |= np.arange(len(ids))
    keys.sort()
    places = keys & ((1 << bits) - 1)
    keys >>= bits
    is_first = np.empty(len(ids), bool)
    is_first[0] = True
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    inverse = np.empty(len(ids), np.int32)
    inverse[places] = np.cumsum(is_first, dtype=np.int32) - 1
    return keys[is_first] + low, inverse


def _by_owner(
    rows: np.ndarray, positions: np.ndarray, owners: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(owners, kind="stable")
    moved = np.arange(max(len(rows), int(positions.max(initial=0)) + 1), dtype=np.int32)
    moved[order] = np.arange(len(rows), dtype=np.int32)
    return rows[order], moved[positions]


def _check_rows(table: dict[str, Any], rows: np.ndarray) -> None:
    if len(rows) and not 0 <= rows[0] <= rows[-1] < table["shape"][0]:
        wrong = rows[0] if rows[0] < 0 else rows[-1]
        raise UsageError(
            f"An id that is looked up is a row of its table. Received: id {wrong} for table "
            f"'{table['path']}' of {table['shape'][0]} rows. There is no such row to train. Check "
            "the vocabulary, or use a table that grows, `rx.layers.DynamicTable`."
        )

"""A cell in a snapshot: an entry of the manifest that says where it is in data files.

A cell is a piece for its value and one for each slot. A cell that is trained by rows is chunks of
some rows with all their values; later chunks override earlier ones. A dynamic table is an export
and the increments that continue it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from replicax._ps.buffers import array_of, raw
from replicax._ps.server.server_state import (
    CellState,
    bare_cell,
    cell_of,
    described_cell,
    take_table,
    whole_cell,
)
from replicax._ps.tables.dynamic_table import DynamicCell

if TYPE_CHECKING:
    from replicax._ps.server.code import Code
    from replicax._ps.server.server import ParameterServer
    from replicax._ps.server.snapshot_files import DataFile, SnapshotFolder

Entry = Mapping[str, Any]


def changed_cell(number: int, cell: Any, before: Entry | None) -> CellState:
    """The changes of a cell since an entry of it. The server is locked."""
    state = bare_cell(number, cell)
    if isinstance(cell, DynamicCell):
        return _changed_table(state, before)
    changed, cell.changed = cell.changed, None
    if before is not None and tuple(before["stamp"]) == state.stamp:
        return state
    if not cell.is_in_place:
        return whole_cell(number, cell)
    # Once the written rows outgrow the whole cell, the whole is written again.
    state.continues = (
        before is not None
        and before["stamp"][1] == cell.replaced
        and before["more"] <= before["base"]
    )
    state.rows = cell.capture(changed if state.continues else None)
    return state


def _changed_table(state: CellState, before: Entry | None) -> CellState:
    if before is None or tuple(before["stamp"]) != state.stamp:
        goes_on = (
            before is not None
            and before["more"] <= before["base"]
            and before["optimizer"] == state.optimizer
        )
        take_table(state, before["stamp"][1] if before is not None and goes_on else None)
    return state


def written(
    server: ParameterServer, state: CellState, before: Entry | None, data: DataFile
) -> Entry:
    """Write the changes of a cell and return its entry."""
    if not state.arrays and state.rows is None:
        assert before is not None
        return before
    if state.rows is None:
        pieces = [data.add([raw(array)]) for array in state.arrays]
        about = described_cell(server.code, state, state.arrays)
        size = _total(pieces)
        if before is not None and state.continues:
            increments = [*before["increments"], {**about, "pieces": pieces}]
            more = {"more": before["more"] + size, "increments": increments}
            return {**before, **more, "stamp": list(state.stamp)}
        whole = {"chunks": [], "increments": [], "base": size, "more": 0}
        return {**about, "pieces": pieces, **whole}
    about = described_cell(server.code, state, state.rows.arrays)
    chunks = [
        [data.add([raw(rows), *map(raw, columns)]), len(rows)]
        for rows, columns in state.rows.chunks(server.lock)
    ]
    size = _total(piece for piece, _ in chunks)
    if before is None or not state.continues:
        whole = {"increments": [], "base": size, "more": 0}
        return {**about, "pieces": [], "chunks": chunks, **whole}
    held = {
        "pieces": before["pieces"],
        "chunks": [*before["chunks"], *chunks],
        "increments": [],
    }
    return {**about, **held, "base": before["base"], "more": before["more"] + size}


def read(folder: SnapshotFolder, entry: Entry, code: Code) -> Any:
    """The cell of an entry, with code that the server has been sent.

    `Damaged` if it differs from what was written.
    """
    arrays = _arrays(folder, entry)
    if entry["table"] is not None:
        table = cell_of(code, entry, arrays)
        for increment in entry["increments"]:
            names = increment["table"]["names"]
            table.load(dict(zip(names, _arrays(folder, increment), strict=True)))
        return table
    if not entry["chunks"]:
        return cell_of(code, entry, arrays)
    # A cell trained by rows needs memory of its own, to be changed in place.
    own = [np.array(array) for array in arrays]
    own = own or [np.empty(shape, np.dtype(dtype)) for dtype, shape in entry["arrays"]]
    for rows, columns in _chunks(folder, entry):
        for array, column in zip(own, columns, strict=True):
            array[rows] = column
    return cell_of(code, entry, own)


def _arrays(folder: SnapshotFolder, entry: Entry) -> list[np.ndarray]:
    return [
        array_of(folder.read(piece), dtype, shape)
        for piece, (dtype, shape) in zip(entry["pieces"], entry["arrays"], strict=False)
    ]


def files_of(entries: Iterable[Entry]) -> set[str]:
    """The data files that entries refer to."""
    return {piece[0] for entry in entries for piece in _pieces(entry)}


def size_of(entries: Iterable[Entry]) -> int:
    """How many bytes entries refer to."""
    return sum(_total(_pieces(entry)) for entry in entries)


def _chunks(folder: SnapshotFolder, entry: Entry) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    types = [(np.dtype(dtype), shape[1:]) for dtype, shape in entry["arrays"]]
    for piece, count in entry["chunks"]:
        found = folder.read(piece)
        start = count * np.dtype(np.int64).itemsize
        rows, columns = np.frombuffer(found[:start], np.int64), []
        for dtype, shape in types:
            stop = start + count * dtype.itemsize * int(np.prod(shape))
            # A copy, because data behind other types may not be aligned.
            columns.append(array_of(bytes(found[start:stop]), dtype, (count, *shape)))
            start = stop
        yield rows, columns


def _pieces(entry: Entry) -> list[Any]:
    more = [piece for increment in entry["increments"] for piece in increment["pieces"]]
    return [*entry["pieces"], *(piece for piece, _ in entry["chunks"]), *more]


def _total(pieces: Iterable[Any]) -> int:
    return sum(piece[2] for piece in pieces)

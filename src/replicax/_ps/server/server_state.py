"""The state of a server at one moment: captured from a server, and installed in one.

A snapshot writes it to disk (`snapshots.py`), a replica gets it over a connection (`replicas.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from replicax._net import array_of, raw
from replicax._ps.server.cells import Cell, Hosted
from replicax._ps.server.server import Applied, as_ranges, from_ranges
from replicax._ps.tables.dynamic_table import DynamicCell
from replicax._ps.variables.shard_optimizer import Part

if TYPE_CHECKING:
    from replicax._ps.server.cells import RowCapture
    from replicax._ps.server.code import Code
    from replicax._ps.server.server import ParameterServer

Stamp = tuple[int, int]


@dataclass
class CellState:
    """A cell as it was.

    The arrays are the value and the slots; they never change, those that do are in `rows`. Of a
    dynamic table, which `table` describes, they are an export.
    """

    number: int
    cell: Any  # only its lists of captures may be looked at later
    part: Part
    stamp: Stamp  # equal stamps mean equal contents
    optimizer: int | None
    arrays: list[Any]
    rows: RowCapture | None = None  # wanted rows of a cell that is changed in place
    table: dict[str, Any] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the contents were taken; else they are from an earlier state."""
        return bool(self.arrays) or self.rows is not None


@dataclass
class ServerState:
    """A server as it was: what JSON can hold, and its cells."""

    about: dict[str, Any]
    cells: list[CellState]


def capture(
    server: ParameterServer, cells: Callable[[int, Any], CellState] | None = None
) -> ServerState:
    """Take the state of a server, in microseconds. The server is locked.

    `cells` says how each cell is taken; by default all of it.
    """
    take = cells or whole_cell
    about = {
        "clock": server.clock,
        "changes": server.changes,
        "applied": server.applied.ids(),
        "requests": server.requests.ids(),
        "staleness": list(server.staleness.items()),
        "optimizers": [
            [number, server.code.digest_of(one.recipe), one.iterations, one.learning_rate]
            for number, one in server.optimizers.items()
        ],
        "plans": list(server.plans.values()),
    }
    return ServerState(about, [take(number, cell) for number, cell in server.cells.items()])


def whole_cell(number: int, cell: Any) -> CellState:
    state = bare_cell(number, cell)
    if isinstance(cell, DynamicCell):
        export = cell.export()
        state.table = {"described": cell.described(), "names": list(export)}
        state.arrays = list(export.values())
    elif cell.is_in_place:
        state.rows = cell.capture()
    else:
        state.arrays = [cell.get(), *(cell.get(slot) for slot in range(len(cell.slots)))]
    return state


def bare_cell(number: int, cell: Any) -> CellState:
    return CellState(
        number, cell, cell.part, (cell.version, cell.replaced), cell.optimizer, arrays=[]
    )


def described(state: ServerState) -> dict[str, Any]:
    """The state for JSON, with ids as ranges; this takes longer than to take the state."""
    ids = {name: as_ranges(state.about[name]) for name in ("applied", "requests")}
    return {**state.about, **ids}


def described_cell(code: Code, state: CellState, arrays: Sequence[Any]) -> dict[str, Any]:
    """The part of a cell that JSON can hold; its value and slots are `arrays`."""
    part = state.part
    return {
        "number": state.number,
        "path": part.path,
        "decays": part.decays,
        "constraint": code.digest_of(part.constraint),
        "stamp": list(state.stamp),
        "optimizer": state.optimizer,
        "arrays": [[str(array.dtype), list(array.shape)] for array in arrays],
        "table": state.table,
    }


def cell_of(code: Code, about: Mapping[str, Any], arrays: Sequence[Any]) -> Any:
    """A cell from its description and these arrays."""
    if about["table"] is not None:
        cell = DynamicCell.of_description(about["table"]["described"])
        cell.load(dict(zip(about["table"]["names"], arrays, strict=True)))
        return cell
    constraint = code.constraint(about["constraint"])
    value, *slots = arrays
    dtype, shape = about["arrays"][0]
    part = Part(about["path"], tuple(shape), dtype, about["decays"], constraint)
    version, replaced = about["stamp"]
    return Cell(part, value, version, slots, about["optimizer"], replaced)


def install(
    server: ParameterServer, about: Mapping[str, Any], cells: Iterable[tuple[int, Any]]
) -> None:
    """Replace a server's state by a description and these cells by number."""
    hosted = {
        number: Hosted.of(server.code.recipe(digest), iterations, rate)
        for number, digest, iterations, rate in about["optimizers"]
    }
    with server.lock:
        server.clock, server.changes = about["clock"], about["changes"]
        server.applied = Applied(from_ranges(about["applied"]))
        server.requests = Applied(from_ranges(about["requests"]))
        server.staleness = Counter(dict(about["staleness"]))
        server.optimizers = hosted
        server.cells = dict(cells)
        server.plans = {plan["id"]: plan for plan in about["plans"]}


def packed(server: ParameterServer, begin: Callable[[], None] = lambda: None) -> list[Any]:
    """The state of a server as the buffers of one message; pushes go on meanwhile.

    `begin` is called under the lock, at the moment of that state.
    """
    with server.lock:
        state = capture(server)
        begin()
    cells: list[Any] = []
    code = server.code.pickled()
    buffers: list[Any] = [*code]
    try:
        for one in state.cells:
            arrays = one.arrays or whole_rows(server, one)
            cells.append(described_cell(server.code, one, arrays))
            buffers += map(raw, arrays)
    finally:
        release(server, state)
    about = {**described(state), "cells": cells, "code": len(code)}
    return [json.dumps(about).encode(), *buffers]


def unpack(server: ParameterServer, buffers: Sequence[Any]) -> None:
    """Replace a server's state by one that was `packed`."""
    about = json.loads(bytes(buffers[0]))
    given = iter(buffers[1:])
    for _ in range(about["code"]):
        server.code.add(next(given))
    cells = []
    for one in about["cells"]:
        arrays = [array_of(next(given), dtype, shape) for dtype, shape in one["arrays"]]
        cells.append((one["number"], cell_of(server.code, one, arrays)))
    install(server, about, cells)


def whole_rows(server: ParameterServer, state: CellState) -> list[np.ndarray]:
    """The arrays of a cell that is changed in place, as they were when it was captured."""
    assert state.rows is not None
    arrays: list[np.ndarray] = []
    for rows, columns in state.rows.chunks(server.lock):
        if not arrays:
            length = state.part.shape[0]
            arrays = [np.empty((length, *column.shape[1:]), column.dtype) for column in columns]
        for array, column in zip(arrays, columns, strict=True):
            array[rows] = column
    return arrays


def release(server: ParameterServer, state: ServerState) -> None:
    """Stop saving rows for this state."""
    with server.lock:
        for one in state.cells:
            one.cell.captures = [kept for kept in one.cell.captures if kept is not one.rows]

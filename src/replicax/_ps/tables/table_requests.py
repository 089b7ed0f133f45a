"""Requests about a server's dynamic tables, beside those about all cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._ps.buffers import array_of, raw
from replicax._ps.tables.dynamic_cell import DynamicCell

if TYPE_CHECKING:
    from replicax._ps.server.server import ParameterServer

Reply = tuple[dict[str, Any], Sequence[Any]]


@final
class TableRequests:
    """Handlers of messages about tables."""

    def __init__(self, server: ParameterServer) -> None:
        self._server = server
        self.handlers: dict[str, Callable[[Any, Any], Reply]] = {
            "table": self._make,
            "table_state": self._state,
            "table_load": self._load,
            "table_statistics": self._statistics,
        }

    def _make(self, caller: Any, message: Any) -> Reply:
        with self._server.lock:
            cell = DynamicCell.of_description(message.head["described"])
            self._server.cells[message.head["cell"]] = cell
        return {}, ()

    def _state(self, caller: Any, message: Any) -> Reply:
        with self._server.lock:
            cell = self._server.cells[message.head["cell"]]
            return packed(cell.export_since(message.head["since"]))

    def _load(self, caller: Any, message: Any) -> Reply:
        with self._server.lock:
            self._server.cells[message.head["cell"]].load(unpacked(message.head, message.buffers))
        return {}, ()

    def _statistics(self, caller: Any, message: Any) -> Reply:
        with self._server.lock:
            return self._server.cells[message.head["cell"]].statistics(), ()


def packed(state: Mapping[str, Any]) -> Reply:
    """Arrays by name, as a message."""
    arrays = {name: np.asarray(array) for name, array in state.items()}
    about = [[name, str(array.dtype), array.shape] for name, array in arrays.items()]
    return {"arrays": about}, [raw(array) for array in arrays.values()]


def unpacked(head: Mapping[str, Any], buffers: Sequence[Any]) -> dict[str, np.ndarray]:
    """The arrays of such a message."""
    return {
        name: array_of(buffer, dtype, shape)
        for (name, dtype, shape), buffer in zip(head["arrays"], buffers, strict=True)
    }

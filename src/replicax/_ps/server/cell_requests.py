"""The coordinator's requests about a server's cells and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._ps.buffers import array_of, numbers_of, raw
from replicax._ps.server.cells import Cell
from replicax._ps.server.hosted import Hosted
from replicax._ps.tables.dynamic_cell import DynamicCell
from replicax._ps.variables.shard_optimizer import Part

if TYPE_CHECKING:
    from replicax._ps.server.server import ParameterServer

Reply = tuple[dict[str, Any], Sequence[Any]]


@final
class CellRequests:
    """Handlers of messages about cells."""

    def __init__(self, server: ParameterServer) -> None:
        self._server = server
        self.handlers: dict[str, Callable[[Any, Any], Reply]] = {
            "create": self._create,
            "read": self._read,
            "write": self._write,
            "rows": self._rows,
            "scatter": self._scatter,
            "optimizer": self._optimizer,
            "attach": self._attach,
            "tune": self._tune,
        }

    def _create(self, caller: Any, message: Any) -> Reply:
        head = message.head
        part = Part(head["path"], tuple(head["shape"]), head["dtype"], head["decays"])
        value = array_of(message.buffers[0], part.dtype, part.shape)
        with self._server.lock:
            self._server.cells[head["cell"]] = Cell(part, value)
        return {}, ()

    def _read(self, caller: Any, message: Any) -> Reply:
        with self._server.lock:
            values = [self._server.cells[cell].get(slot) for cell, slot in message.head["cells"]]
        return {}, [raw(value) for value in values]

    def _write(self, caller: Any, message: Any) -> Reply:
        with self._server.lock:
            for (number, slot, kind), buffer in zip(
                message.head["items"], message.buffers, strict=True
            ):
                cell = self._server.cells[number]
                now = cell.get(slot)
                cell.put(array_of(buffer, now.dtype, now.shape), kind, slot)
        return {}, ()

    def _rows(self, caller: Any, message: Any) -> Reply:
        with self._server.lock:
            cell = self._server.cells[message.head["cell"]]
            return {}, [raw(cell.rows(numbers_of(message.buffers[0])))]

    def _scatter(self, caller: Any, message: Any) -> Reply:
        rows = numbers_of(message.buffers[0])
        with self._server.lock:
            cell = self._server.cells[message.head["cell"]]
            shape = (*(() if message.head["one"] else rows.shape), *cell.part.shape[1:])
            values = array_of(message.buffers[1], cell.part.dtype, shape)
            cell.scatter(rows, values, message.head["how"])
        return {}, ()

    def _optimizer(self, caller: Any, message: Any) -> Reply:
        """Take an optimizer, or further cells for one; or describe the slots of a cell."""
        head, buffers = message.head, list(message.buffers)
        with self._server.lock:
            code = self._server.code
            constraint = code.add(buffers.pop()) if head["constrained"] else None
            for number, *_ in head["cells"]:
                cell = self._server.cells[number]
                cell.part = cell.part._replace(constraint=constraint)
            hosted = self._server.optimizers.get(head["id"])
            if hosted is None:
                recipe = code.add(buffers[0])
                hosted = Hosted.of(recipe, head["iterations"], head["learning_rate"])
                self._server.optimizers[head["id"]] = hosted
            given = iter(buffers[1:])
            for number, count, decays in head["cells"]:
                cell = self._server.cells[number]
                part = cell.part._replace(decays=decays)
                # Copies: rows change in place, and cells of one kind share their initial values.
                initial = [slot.copy() for slot in hosted.updates.initial_slots(part)]
                slots = [array_of(next(given), s.dtype, s.shape) for s in initial[:count]]
                cell.attach(head["id"], slots + initial[count:], decays=decays)
        return {}, ()

    def attached(self, head: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """The result of an `optimizer` message, as an `attach` message without its code."""
        server, buffers, cells = self._server, [], []
        constraint = None
        for number, _, decays in head["cells"]:
            cell, slots = server.cells[number], []
            constraint = server.code.digest_of(cell.part.constraint)
            for slot in cell.slots_of_new_rows() if isinstance(cell, DynamicCell) else cell.slots:
                array = np.asarray(slot)
                is_constant = array.size > 0 and bool((array == array.flat[0]).all())
                about = [str(array.dtype), list(array.shape), is_constant]
                slots.append(about)
                buffers.append(raw(array.reshape(-1)[:1] if is_constant else array))
            cells.append([number, decays, slots])
        about = {"id": head["id"], "constraint": constraint, "cells": cells}
        if "iterations" in head:
            hosted = server.optimizers[head["id"]]
            digest = server.code.digest_of(hosted.recipe)
            about["made"] = [digest, hosted.kind, head["iterations"], head["learning_rate"]]
        if "request" in head:
            about["request"] = head["request"]
        return about, buffers

    def _attach(self, caller: Any, message: Any) -> Reply:
        """Repeat the result of an `optimizer` message."""
        head, given, code = message.head, iter(message.buffers), self._server.code
        with self._server.lock:
            if "made" in head and head["id"] not in self._server.optimizers:
                digest, kind, iterations, rate = head["made"]
                hosted = Hosted.of(code.recipe(digest), iterations, rate, kind)
                self._server.optimizers[head["id"]] = hosted
            for number, decays, about in head["cells"]:
                cell = self._server.cells[number]
                cell.part = cell.part._replace(constraint=code.constraint(head["constraint"]))
                slots = [
                    np.full(shape, array_of(next(given), dtype, (1,))[0])
                    if is_constant
                    else array_of(next(given), dtype, shape)
                    for dtype, shape, is_constant in about
                ]
                cell.attach(head["id"], slots, decays=decays)
        return {}, ()

    def _tune(self, caller: Any, message: Any) -> Reply:
        """Read, and on request change, the variables that an optimizer has once for all cells."""
        with self._server.lock:
            hosted = self._server.optimizers[message.head["id"]]
            for name, value in message.head["set"].items():
                setattr(hosted, name, value)
            return self.tuned(message.head["id"])

    def tuned(self, optimizer: int) -> Reply:
        """The variables that an optimizer has once for all cells."""
        hosted = self._server.optimizers[optimizer]
        return {"iterations": hosted.iterations, "learning_rate": hosted.learning_rate}, ()

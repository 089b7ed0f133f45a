"""A parameter server: cells and optimizers, and the few things that can be asked of them.

The hot one is `exchange`: a worker pushes what a closure has computed and gets the values for its
next one, in one round trip. What is pushed and pulled is agreed on before, as a plan; then a
message is numbers and nothing else. README.md tells the life of a closure.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from replicax._core.errors import ClusterError
from replicax._keras.shard_optimizer import Part, Recipe, ShardOptimizer
from replicax._ps.applied import Applied
from replicax._ps.buffers import array_of, numbers_of, raw
from replicax._ps.cells import Cell
from replicax._ps.rounds import Sums
from replicax._ps.scaling import scaling

Reply = tuple[dict[str, Any], Sequence[Any]]


class UnknownPlan(ClusterError):
    """Raised when a worker means a plan that this server, which may have begun anew, has not."""


class OtherOptimizer(ClusterError):
    """Raised for gradients for an optimizer that a variable has no more."""

    def __init__(self, path: str) -> None:
        super().__init__(
            "A variable on a parameter server is trained by one optimizer at a time. Received: "
            f"gradients of '{path}' for one that another has replaced. What the first one kept "
            "beside it is gone. Train it by one optimizer only."
        )


@dataclass
class Hosted:
    """An optimizer on a server: its steps are counted for all values at once."""

    recipe: Recipe
    updates: ShardOptimizer
    iterations: int
    learning_rate: float | None


@final
class ParameterServer:
    """The state of one server, and a handler of messages that change it.

    Args:
        index: Which server it is.
        settings: `staleness_scaling` and `dense`, of the strategy.
    """

    def __init__(self, index: int, settings: dict[str, Any]) -> None:
        self.index = index
        self.lock = threading.RLock()
        self.cells: dict[int, Cell] = {}
        self.optimizers: dict[int, Hosted] = {}
        self.applied = Applied()
        self.clock = 0
        self.staleness: Counter[int] = Counter()
        self._plans: dict[str, dict[str, Any]] = {}
        self._scale = scaling(settings.get("staleness_scaling"))
        self._round = Sums() if settings.get("dense") == "mirrored" else None
        self._handlers: dict[str, Callable[[Any, Any], Reply]] = {
            "create": self._create,
            "read": self._read,
            "write": self._write,
            "rows": self._rows,
            "scatter": self._scatter,
            "optimizer": self._optimizer,
            "tune": self._tune,
            "plan": self._plan,
            "exchange": self._exchange,
            "round": self._end_round,
            "stats": self._stats,
        }

    def handle(self, session: Any, message: Any) -> Reply:
        """Answer one message."""
        return self._handlers[message.op](session, message)

    def _create(self, session: Any, message: Any) -> Reply:
        head = message.head
        part = Part(head["path"], tuple(head["shape"]), head["dtype"], head["decays"])
        value = array_of(message.buffers[0], part.dtype, part.shape)
        with self.lock:
            self.cells[head["cell"]] = Cell(part, value)
        return {}, ()

    def _read(self, session: Any, message: Any) -> Reply:
        with self.lock:
            values = [self.cells[cell].get(slot) for cell, slot in message.head["cells"]]
        return {}, [raw(value) for value in values]

    def _write(self, session: Any, message: Any) -> Reply:
        with self.lock:
            for (number, slot, kind), buffer in zip(
                message.head["items"], message.buffers, strict=True
            ):
                cell = self.cells[number]
                now = cell.get(slot)
                cell.put(array_of(buffer, now.dtype, now.shape), kind, slot)
        return {}, ()

    def _rows(self, session: Any, message: Any) -> Reply:
        with self.lock:
            cell = self.cells[message.head["cell"]]
            return {}, [raw(cell.rows(numbers_of(message.buffers[0])))]

    def _scatter(self, session: Any, message: Any) -> Reply:
        rows = numbers_of(message.buffers[0])
        with self.lock:
            cell = self.cells[message.head["cell"]]
            shape = (*(() if message.head["one"] else rows.shape), *cell.part.shape[1:])
            values = array_of(message.buffers[1], cell.part.dtype, shape)
            cell.scatter(rows, values, message.head["how"])
        return {}, ()

    def _optimizer(self, session: Any, message: Any) -> Reply:
        """Take an optimizer, or further cells for one; or say what the slots of a cell are."""
        head, buffers = message.head, list(message.buffers)
        constraint = pickle.loads(buffers.pop()) if head["constrained"] else None
        with self.lock:
            for number, *_ in head["cells"]:
                cell = self.cells[number]
                cell.part = cell.part._replace(constraint=constraint)
            hosted = self.optimizers.get(head["id"])
            if hosted is None:
                recipe: Recipe = pickle.loads(buffers[0])
                updates = ShardOptimizer(recipe)
                hosted = Hosted(recipe, updates, head["iterations"], head["learning_rate"])
                self.optimizers[head["id"]] = hosted
            given = iter(buffers[1:])
            for number, count, decays in head["cells"]:
                cell = self.cells[number]
                cell.part = cell.part._replace(decays=decays)
                initial = hosted.updates.initial_slots(cell.part)
                cell.slots = [
                    array_of(next(given), slot.dtype, slot.shape) for slot in initial[:count]
                ] + initial[count:]
                cell.optimizer = head["id"]
        return {}, ()

    def _tune(self, session: Any, message: Any) -> Reply:
        """Read, and if told so change, what an optimizer has once for all cells."""
        with self.lock:
            hosted = self.optimizers[message.head["id"]]
            for name, value in message.head["set"].items():
                setattr(hosted, name, value)
            return {"iterations": hosted.iterations, "learning_rate": hosted.learning_rate}, ()

    def _plan(self, session: Any, message: Any) -> Reply:
        with self.lock:
            self._plans[message.head["id"]] = message.head
        return {}, ()

    def _exchange(self, session: Any, message: Any) -> Reply:
        head = message.head
        plan = self._plans.get(head["plan"])
        if plan is None:
            raise UnknownPlan(head["plan"])
        with self.lock:
            if head["push"] and head["closure"] not in self.applied:
                self._apply(plan, message.buffers, session.state.get(head["plan"]))
                self.applied.add(head["closure"])
                self.clock += 1
            given = iter(message.buffers[len(message.buffers) - len(plan["tables"]) :])
            values: list[Any] = []
            if head["pull"]:
                values = [self._current(cell, slot) for cell, slot in plan["reads"]]
                values += [self.cells[c].rows(numbers_of(next(given))) for c in plan["tables"]]
                session.state[head["plan"]] = {
                    cell: self.cells[cell].version for cell in plan["pushed"]
                }
            clock = self.clock
        return {"clock": clock}, [raw(value) for value in values]

    def _current(self, cell: Any, slot: int | None) -> Any:
        if isinstance(cell, list):  # what an optimizer has once for all cells
            optimizer, name, dtype = cell
            return np.asarray(getattr(self.optimizers[optimizer], name), dtype)
        return self.cells[cell].get(slot)

    def _apply(self, plan: Any, buffers: Any, seen: Any) -> None:
        given = iter(buffers)
        scale = 1.0
        if plan["pushed"] and seen is not None:
            late = max(self.cells[cell].version - seen[cell] for cell in plan["pushed"])
            self.staleness[late] += 1
            scale = self._scale(late)
        for push in plan["pushes"]:
            hosted = self.optimizers[push["optimizer"]]
            cells = [self.cells[number] for number in push["cells"]]
            for cell in cells + [self.cells[number] for number in push["tables"]]:
                if cell.optimizer != push["optimizer"]:
                    raise OtherOptimizer(cell.part.path)
            grads = [array_of(next(given), cell.part.dtype, cell.part.shape) for cell in cells]
            if self._round is None:
                self._step(hosted, cells, grads, scale)
            else:
                self._round.add((push["optimizer"], *push["cells"]), grads)
            for number in push["tables"]:
                rows = numbers_of(next(given))
                self._step_rows(hosted, self.cells[number], rows, next(given), scale)
            if self._round is None:
                hosted.iterations += 1
        for number, slot, kind in plan["writes"]:
            cell = self.cells[number]
            now = cell.get(slot)
            cell.put(array_of(next(given), now.dtype, now.shape), kind, slot)

    def _end_round(self, session: Any, message: Any) -> Reply:
        """Apply the means of a round of closures."""
        with self.lock:
            means = self._round.means() if self._round else {}
            for (optimizer, *numbers), grads in means.items():
                self._step(self.optimizers[optimizer], [self.cells[n] for n in numbers], grads, 1.0)
            for optimizer in {key[0] for key in means}:
                self.optimizers[optimizer].iterations += 1
        return {}, ()

    def _step(self, hosted: Hosted, cells: list[Cell], grads: list[Any], scale: float) -> None:
        if not cells:
            return
        values, slots = hosted.updates.update(
            [cell.part for cell in cells],
            [cell.value for cell in cells],
            grads,
            [cell.slots for cell in cells],
            hosted.iterations,
            hosted.learning_rate,
            scale,
        )
        for cell, value, held in zip(cells, values, slots, strict=True):
            cell.value, cell.slots, cell.version = value, held, cell.version + 1

    def _step_rows(self, hosted: Hosted, cell: Cell, rows: Any, buffer: Any, scale: float) -> None:
        if not len(rows):
            return
        grads = array_of(buffer, cell.part.dtype, (len(rows), *cell.part.shape[1:]))
        cell.step_rows(rows, grads, hosted, scale)

    def _stats(self, session: Any, message: Any) -> Reply:
        with self.lock:
            versions = {str(number): cell.version for number, cell in self.cells.items()}
            late = {str(updates): count for updates, count in self.staleness.items()}
            return {"clock": self.clock, "versions": versions, "staleness": late}, ()

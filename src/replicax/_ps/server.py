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
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._core.errors import ClusterError
from replicax._keras.shard_optimizer import Part, Recipe, ShardOptimizer
from replicax._ps.applied import Applied
from replicax._ps.buffers import array_of, numbers_of, raw
from replicax._ps.cells import Cell
from replicax._ps.rounds import Sums
from replicax._ps.row_updates import row_update
from replicax._ps.scaling import scaling
from replicax._ps.table_requests import TableRequests

if TYPE_CHECKING:
    from replicax._ps.table import Apply

Reply = tuple[dict[str, Any], Sequence[Any]]

_CHANGES = {"create", "write", "scatter", "optimizer", "round", "table", "table_load"}


def is_change(op: str, head: dict[str, Any]) -> bool:
    """Whether a message of the coordinator changes something: it must neither be lost nor doubled.

    What workers push does too, but a closure can be run again.
    """
    return op in _CHANGES or (op == "tune" and bool(head["set"]))


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

    def of_rows(self, part: Part, scale: float) -> tuple[Apply, bool]:
        """What updates rows of a cell, and whether it goes row by row: see `Table.update`."""
        return row_update(self.recipe, self.updates, part, self.learning_rate, scale)


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
        self.cells: dict[int, Any] = {}  # each a `Cell` or a `DynamicCell`
        self.optimizers: dict[int, Hosted] = {}
        self.applied = Applied()
        self.clock = 0
        self.staleness: Counter[int] = Counter()
        # What the coordinator has changed: how often, and by which of its requests.
        self.changes = 0
        self.requests = Applied()
        self.plans: dict[str, dict[str, Any]] = {}
        # Told, under the lock, of all that changes anything, in order: op, head, buffers.
        self.observers: list[Callable[[str, dict[str, Any], Sequence[Any]], None]] = []
        self._scale = scaling(settings.get("staleness_scaling"))
        self.round = Sums() if settings.get("dense") == "mirrored" else None
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
            "push": self._pushed,
            "round": self._end_round,
            "stats": self._stats,
            **TableRequests(self).handlers,
        }

    def handle(self, session: Any, message: Any) -> Reply:
        """Answer one message."""
        if is_change(message.op, message.head):
            return self._change(message)
        return self._handlers[message.op](session, message)

    def _change(self, message: Any) -> Reply:
        """Let the coordinator change something; once, although it asks again after a failure."""
        request = message.head.get("request")
        with self.lock:
            if request is not None and request in self.requests:
                return self._tuned(message.head["id"]) if message.op == "tune" else ({}, ())
            reply = self._handlers[message.op](None, message)
            self.changes += 1
            if request is not None:
                self.requests.add(request)
            self._tell(message.op, message.head, message.buffers)
        return reply

    def _tell(self, op: str, head: dict[str, Any], buffers: Sequence[Any]) -> None:
        for observer in self.observers:
            observer(op, head, buffers)

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
                part = cell.part._replace(decays=decays)
                # Copies: rows are changed in place, and cells of one kind share what they begin as.
                initial = [slot.copy() for slot in hosted.updates.initial_slots(part)]
                slots = [array_of(next(given), s.dtype, s.shape) for s in initial[:count]]
                cell.attach(head["id"], slots + initial[count:], decays=decays)
        return {}, ()

    def _tune(self, session: Any, message: Any) -> Reply:
        """Read, and if told so change, what an optimizer has once for all cells."""
        with self.lock:
            hosted = self.optimizers[message.head["id"]]
            for name, value in message.head["set"].items():
                setattr(hosted, name, value)
            return self._tuned(message.head["id"])

    def _tuned(self, optimizer: int) -> Reply:
        hosted = self.optimizers[optimizer]
        return {"iterations": hosted.iterations, "learning_rate": hosted.learning_rate}, ()

    def _plan(self, session: Any, message: Any) -> Reply:
        with self.lock:
            if self.plans.get(message.head["id"]) != message.head:
                self.plans[message.head["id"]] = message.head
                self._tell(message.op, message.head, ())
        return {}, ()

    def _exchange(self, session: Any, message: Any) -> Reply:
        head = message.head
        plan = self.plans.get(head["plan"])
        if plan is None:
            raise UnknownPlan(head["plan"])
        with self.lock:
            if head["push"] and head["closure"] not in self.applied:
                late = self._late(plan, session.state.get(head["plan"]))
                self._push(plan, head["closure"], late, message.buffers)
            given = iter(message.buffers[len(message.buffers) - len(plan["tables"]) :])
            values: list[Any] = []
            if head["pull"]:
                values = [self._current(cell, slot) for cell, slot in plan["reads"]]
                values += [
                    self.cells[cell].rows(numbers_of(next(given)), training=cell in plan["pushed"])
                    for cell in plan["tables"]
                ]
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

    def _late(self, plan: Any, seen: Any) -> int | None:
        """How many updates came since the values were pulled that a push was computed from."""
        if not plan["pushed"] or seen is None:
            return None
        return max(self.cells[cell].version - seen[cell] for cell in plan["pushed"])

    def _pushed(self, session: Any, message: Any) -> Reply:
        """What another server was pushed, of which this one is the replica."""
        head = message.head
        with self.lock:
            self._push(self.plans[head["plan"]], head["closure"], head["late"], message.buffers)
        return {}, ()

    def _push(self, plan: Any, closure: int, late: int | None, buffers: Sequence[Any]) -> None:
        scale = 1.0
        if late is not None:
            self.staleness[late] += 1
            scale = self._scale(late)
        self._apply(plan, buffers, scale)
        self.applied.add(closure)
        self.clock += 1
        if self.observers:
            self._tell("push", {"plan": plan["id"], "closure": closure, "late": late}, buffers)

    def _apply(self, plan: Any, buffers: Sequence[Any], scale: float) -> None:
        given = iter(buffers)
        for push in plan["pushes"]:
            hosted = self.optimizers[push["optimizer"]]
            cells = [self.cells[number] for number in push["cells"]]
            for cell in cells + [self.cells[number] for number in push["tables"]]:
                if cell.optimizer != push["optimizer"]:
                    raise OtherOptimizer(cell.part.path)
            grads = [array_of(next(given), cell.part.dtype, cell.part.shape) for cell in cells]
            if self.round is None:
                _step(hosted, cells, grads, scale)
            else:
                self.round.add((push["optimizer"], *push["cells"]), grads)
            for number in push["tables"]:
                rows = numbers_of(next(given))
                _step_rows(hosted, self.cells[number], rows, next(given), scale)
            if self.round is None:
                hosted.iterations += 1
        for number, slot, kind in plan["writes"]:
            cell = self.cells[number]
            now = cell.get(slot)
            cell.put(array_of(next(given), now.dtype, now.shape), kind, slot)

    def _end_round(self, session: Any, message: Any) -> Reply:
        """Apply the means of a round of closures."""
        with self.lock:
            means = self.round.means() if self.round else {}
            for (optimizer, *numbers), grads in means.items():
                _step(self.optimizers[optimizer], [self.cells[n] for n in numbers], grads, 1.0)
            for optimizer in {key[0] for key in means}:
                self.optimizers[optimizer].iterations += 1
        return {}, ()

    def _stats(self, session: Any, message: Any) -> Reply:
        with self.lock:
            versions = {str(number): cell.version for number, cell in self.cells.items()}
            late = {str(updates): count for updates, count in self.staleness.items()}
            return {"clock": self.clock, "versions": versions, "staleness": late}, ()


def _step(hosted: Hosted, cells: list[Cell], grads: list[Any], scale: float) -> None:
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
        cell.step(value, held)


def _step_rows(hosted: Hosted, cell: Cell, rows: Any, buffer: Any, scale: float) -> None:
    if not len(rows):
        return
    grads = array_of(buffer, cell.part.dtype, (len(rows), *cell.part.shape[1:]))
    cell.step_rows(rows, grads, hosted, scale)

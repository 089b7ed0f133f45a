"""A parameter server: cells and optimizers, and the requests about them.

The hot one is `exchange`: a worker pushes the results of a closure and gets the values for its next
one, in one round trip. A plan agreed on before says what is pushed and pulled, so a message holds
only numbers. README.md tells the life of a closure.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from replicax._core import folder
from replicax._core.errors import ClusterError, UsageError
from replicax._net import Reply, answering, array_of, numbers_of, raw
from replicax._ps.server.cells import Cell, Hosted, OtherOptimizer
from replicax._ps.server.code import Code
from replicax._ps.tables.dynamic_table import DynamicCell
from replicax._ps.variables.shard_optimizer import Part

MOST_AHEAD = 64 << 20  # bytes: compiling larger updates ahead would take too much memory
_CHANGES = {"create", "write", "scatter", "attach", "table", "table_load"}

# How many ids are remembered: a closure is repeated soon after its worker died, but others may
# come in between.
REMEMBERED = 1 << 17


def is_change(op: str, head: dict[str, Any]) -> bool:
    """Whether the coordinator's message is a change, which must be neither lost nor repeated.

    Workers' pushes are changes, too, but a closure can be run again.
    """
    return op in _CHANGES or (op == "tune" and bool(head["set"]))


class UnknownPlan(ClusterError):
    """Raised for a worker's plan that this server, perhaps restarted, does not have."""


@final
class ParameterServer:
    """The state of one server; a message of the operation `x` is answered by the method `op_x`.

    Of the settings it uses the `staleness_scaling`, and the `code` of a run that goes on.
    """

    def __init__(self, index: int, settings: dict[str, Any]) -> None:
        self.index = index
        self.lock = threading.RLock()
        self.code = Code(settings.get("code", ()))
        self.cells: dict[int, Any] = {}  # each a `Cell` or a `DynamicCell`
        self.optimizers: dict[int, Hosted] = {}
        self.applied = Applied()
        self.clock = 0
        self.staleness: Counter[int] = Counter()
        # The coordinator's changes: their number, and the ids of the requests.
        self.changes = 0
        self.requests = Applied()
        self.plans: dict[str, dict[str, Any]] = {}
        # Called under the lock with every change, in order: op, head, buffers.
        self.observers: list[Callable[[str, dict[str, Any], Sequence[Any]], None]] = []
        self._scale = scaling(settings.get("staleness_scaling"))

    def handle(self, caller: Any, message: Any) -> Reply:
        if is_change(message.op, message.head):
            return self._change(message)
        return answering(self, message.op)(caller, message)

    def _change(self, message: Any) -> Reply:
        """Apply a change of the coordinator once, even if it asks again after a failure.

        Its handler runs under the lock.
        """
        request = message.head.get("request")
        with self.lock:
            if request is not None and request in self.requests:
                return self._tuned(message.head["id"]) if message.op == "tune" else ({}, ())
            reply = answering(self, message.op)(None, message)
            self.changes += 1
            if request is not None:
                self.requests.add(request)
            self._tell(message.op, message.head, message.buffers)
        return reply

    def _tell(self, op: str, head: dict[str, Any], buffers: Sequence[Any]) -> None:
        for observer in self.observers:
            observer(op, head, buffers)

    def op_plan(self, caller: Any, message: Any) -> Reply:
        with self.lock:
            if self.plans.get(message.head["id"]) != message.head:
                self.plans[message.head["id"]] = message.head
                self._tell(message.op, message.head, ())
                self._prepare(message.head["pushes"])
        return {}, ()

    def _prepare(self, pushes: Sequence[dict[str, Any]]) -> None:
        """Compile updates while the worker compiles what it will push."""
        for push in pushes:
            cells = [self.cells[number] for number in push["cells"] if number in self.cells]
            hosted = self.optimizers.get(push["optimizer"])
            if hosted is not None and 0 < sum(cell.value.nbytes for cell in cells) <= MOST_AHEAD:
                # No daemon thread: the interpreter must not end during a compilation.
                threading.Thread(target=hosted.prepare, args=(cells,)).start()

    def op_exchange(self, caller: Any, message: Any) -> Reply:
        head = message.head
        plan = self.plans.get(head["plan"])
        if plan is None:
            raise UnknownPlan(head["plan"])
        with self.lock:
            if head["push"] and head["closure"] not in self.applied:
                late = self._late(plan, caller.state.get(head["plan"]))
                self._push(plan, head["closure"], late, message.buffers)
            given = iter(message.buffers[len(message.buffers) - len(plan["tables"]) :])
            values: list[Any] = []
            if head["pull"]:
                values = [self._current(cell, slot) for cell, slot in plan["reads"]]
                values += [
                    self.cells[cell].rows(numbers_of(next(given)), training=cell in plan["pushed"])
                    for cell in plan["tables"]
                ]
                caller.state[head["plan"]] = {
                    cell: self.cells[cell].version for cell in plan["pushed"]
                }
            clock = self.clock
        return {"clock": clock}, [raw(value) for value in values]

    def _current(self, cell: Any, slot: int | None) -> Any:
        if isinstance(cell, list):  # a value of the optimizer for all cells
            optimizer, name, dtype = cell
            return np.asarray(getattr(self.optimizers[optimizer], name), dtype)
        return self.cells[cell].get(slot)

    def _late(self, plan: Any, seen: Any) -> int | None:
        """The number of updates since the values of a push were pulled."""
        if not plan["pushed"] or seen is None:
            return None
        return max(self.cells[cell].version - seen[cell] for cell in plan["pushed"])

    def op_push(self, caller: Any, message: Any) -> Reply:
        """Apply a push to another server, whose replica this is."""
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
            hosted.step(cells, grads, scale)
            for cell in (self.cells[number] for number in push["tables"]):
                rows, pushed = numbers_of(next(given)), next(given)
                if len(rows):
                    shape = (len(rows), *cell.part.shape[1:])
                    grads = array_of(pushed, cell.part.dtype, shape)
                    cell.step_rows(rows, grads, hosted, scale)
            hosted.iterations += 1
        for written in plan["writes"]:
            self._put(written, next(given))

    def op_stats(self, caller: Any, message: Any) -> Reply:
        with self.lock:
            versions = {str(number): cell.version for number, cell in self.cells.items()}
            late = {str(updates): count for updates, count in self.staleness.items()}
            return {"clock": self.clock, "versions": versions, "staleness": late}, ()

    def op_create(self, caller: Any, message: Any) -> Reply:
        head = message.head
        part = Part(head["path"], tuple(head["shape"]), head["dtype"], head["decays"])
        self.cells[head["cell"]] = Cell(part, array_of(message.buffers[0], part.dtype, part.shape))
        return {}, ()

    def op_read(self, caller: Any, message: Any) -> Reply:
        with self.lock:
            values = [self.cells[cell].get(slot) for cell, slot in message.head["cells"]]
        return {}, [raw(value) for value in values]

    def op_save(self, caller: Any, message: Any) -> Reply:
        """Write a value to a file of a checkpoint, if its folder is seen here."""
        head = message.head
        path = Path(head["path"])
        if not path.parent.is_dir():
            return {"written": None}, ()
        with self.lock:
            value = self.cells[head["cell"]].get(head["slot"])
        with folder.created(path) as file:
            return {"written": folder.append(file, [raw(value)])}, ()

    def op_write(self, caller: Any, message: Any) -> Reply:
        for written, buffer in zip(message.head["items"], message.buffers, strict=True):
            self._put(written, buffer)
        return {}, ()

    def _put(self, written: Sequence[Any], buffer: Any) -> None:
        number, slot, kind = written
        cell = self.cells[number]
        now = cell.get(slot)
        cell.put(array_of(buffer, now.dtype, now.shape), kind, slot)

    def op_rows(self, caller: Any, message: Any) -> Reply:
        with self.lock:
            cell = self.cells[message.head["cell"]]
            return {}, [raw(cell.rows(numbers_of(message.buffers[0])))]

    def op_scatter(self, caller: Any, message: Any) -> Reply:
        rows = numbers_of(message.buffers[0])
        cell = self.cells[message.head["cell"]]
        shape = (*(() if message.head["one"] else rows.shape), *cell.part.shape[1:])
        values = array_of(message.buffers[1], cell.part.dtype, shape)
        cell.scatter(rows, values, message.head["how"])
        return {}, ()

    def op_code(self, caller: Any, message: Any) -> Reply:
        """Take code; it is no change, because a restarted server gets all code first."""
        with self.lock:
            self.code.add(message.buffers[0])
            self._tell(message.op, message.head, message.buffers)
        return {}, ()

    def op_attach(self, caller: Any, message: Any) -> Reply:
        """Take an optimizer, or further cells for one, by the digests of code that is here."""
        head, given, code = message.head, iter(message.buffers), self.code
        hosted = self.optimizers.get(head["id"])
        if hosted is None:
            recipe = code.recipe(head["recipe"])
            hosted = Hosted.of(recipe, head["iterations"], head["learning_rate"])
            self.optimizers[head["id"]] = hosted
        constraint = code.constraint(head["constraint"])
        for number, count, decays in head["cells"]:
            cell = self.cells[number]
            cell.part = cell.part._replace(constraint=constraint)
            part = cell.part._replace(decays=decays)
            # Copies: rows change in place, and cells of one kind share their initial values.
            initial = [slot.copy() for slot in hosted.updates.initial_slots(part)]
            slots = [array_of(next(given), s.dtype, s.shape) for s in initial[:count]]
            cell.attach(head["id"], slots + initial[count:], decays=decays)
        return {}, ()

    def op_tune(self, caller: Any, message: Any) -> Reply:
        """Read, and on request change, the variables that an optimizer has once for all cells."""
        with self.lock:
            hosted = self.optimizers[message.head["id"]]
            for name, value in message.head["set"].items():
                setattr(hosted, name, value)
            return self._tuned(message.head["id"])

    def _tuned(self, optimizer: int) -> Reply:
        """The variables that an optimizer has once for all cells."""
        hosted = self.optimizers[optimizer]
        return {"iterations": hosted.iterations, "learning_rate": hosted.learning_rate}, ()

    def op_table(self, caller: Any, message: Any) -> Reply:
        self.cells[message.head["cell"]] = DynamicCell.of_description(message.head["described"])
        return {}, ()

    def op_table_state(self, caller: Any, message: Any) -> Reply:
        with self.lock:
            cell = self.cells[message.head["cell"]]
            return packed(cell.export())

    def op_table_load(self, caller: Any, message: Any) -> Reply:
        self.cells[message.head["cell"]].load(unpacked(message.head, message.buffers))
        return {}, ()

    def op_table_statistics(self, caller: Any, message: Any) -> Reply:
        with self.lock:
            return self.cells[message.head["cell"]].statistics(), ()


@final
class Applied:
    """The ids of the closures, or of the coordinator's requests, that were applied last.

    Ids of a snapshot are given the oldest first.
    """

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids = dict.fromkeys(ids)

    def __contains__(self, closure: int) -> bool:
        return closure in self._ids

    def add(self, closure: int) -> None:
        self._ids[closure] = None
        if len(self._ids) > REMEMBERED:
            del self._ids[next(iter(self._ids))]

    def ids(self) -> list[int]:
        return list(self._ids)


def as_ranges(ids: Iterable[int]) -> list[list[int]]:
    """Ids as runs of consecutive ones, (first, behind the last); most ids are consecutive."""
    known = np.unique(np.fromiter(ids, np.int64))
    breaks = np.flatnonzero(np.diff(known) != 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(known, breaks) if len(run)]


def from_ranges(ranges: Iterable[Sequence[int]]) -> list[int]:
    """The ids of some runs, lowest first, which is about the order in which they were applied."""
    return [number for first, end in ranges for number in range(first, end)]


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


def scaling(wanted: Any) -> Callable[[int], float]:
    """The factor for a gradient that is some updates late.

    It is 1 without scaling, 1 / (1 + lateness) for "inverse", or the result of a function.
    """
    if wanted is None:
        return lambda late: 1.0
    if wanted == "inverse":
        return lambda late: 1.0 / (1.0 + late)
    if callable(wanted):
        own: Callable[[int], Any] = wanted
        return lambda late: float(own(late))
    raise UsageError.of(
        "staleness_scaling",
        "None, 'inverse' or a function",
        wanted,
        "'inverse' multiplies gradients by 1 / (1 + lateness); a function gets the lateness in "
        "updates and returns the factor.",
    )
